"""Strategies for graphs that verify: calls of elementwise ops with right types, and calls of anything on request."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hypothesis import strategies as st
from msgspec.structs import replace

from stagewire.graph import Arg, DTypeArg, Effect, Graph, List, Node, Phase, Ref, Value, definitions
from stagewire.graph_passes import rename_node
from stagewire.testing.basics import (
    Names,
    args,
    argument_names,
    names,
    qualified_names,
    source_lines,
    tensor_types,
    value_types,
)
from stagewire.testing.ops import calls, one_of, operator_targets, targets
from stagewire.types import TensorType, ValueType, contiguous_stride


@dataclasses.dataclass(frozen=True)
class Calls:
    """What the calls of a graph may name: `elementwise` ops by number of tensors, and `opaque` targets of any meaning.

    vocabularies: whether the ops of all vocabularies are called too. operators: whether the operators of torch are that
    have an example.

    With `opaque` None, a graph has a meaning.
    """

    elementwise: tuple[tuple[str, int], ...]
    opaque: st.SearchStrategy[str] | None = None
    handles: bool = True
    vocabularies: bool = False
    operators: bool = False


TORCH_OPS = (("torch.relu", 1), ("torch.neg", 1), ("torch.add", 2), ("operator.mul", 2))
ATEN_OPS = (("aten.relu.default", 1), ("aten.neg.default", 1), ("aten.add.Tensor", 2), ("aten.mul.Tensor", 2))

TORCH = Calls(TORCH_OPS, st.one_of(qualified_names, names))
ATEN = Calls(ATEN_OPS, qualified_names, operators=True)
PRIMS = Calls(ATEN_OPS, qualified_names, vocabularies=True)


@st.composite
def graphs(
    draw: st.DrawFn,
    vocabulary: Calls = ATEN,
    inputs: Sequence[ValueType] | None = None,
    symbols: Sequence[str] = (),
    most_nodes: int = 10,
    phase: Phase | None = None,
) -> Graph:
    """A graph over inputs of these types (of any types, where not given)."""
    supply = Names(draw)
    kinds = draw(st.lists(tensor_types(symbols), max_size=3)) if inputs is None else inputs
    values = [Value(supply.fresh(), kind) for kind in kinds]
    taken = tuple(values)
    nodes: list[Node] = []
    for _ in range(draw(st.integers(0, most_nodes))):
        tensors = [value for value in values if isinstance(value.type, TensorType)]
        opaque = vocabulary.opaque is not None and (not tensors or draw(st.booleans()))
        known = targets() if vocabulary.vocabularies else operator_targets() if vocabulary.operators else ()
        if len(known) > 0 and draw(st.integers(0, 3)) > 0:
            called = _of_vocabulary(draw, known, tensors, supply)
        elif opaque:
            called = [_opaque(draw, vocabulary, values, symbols, supply)]
        elif not tensors:
            break
        else:
            called = [_elementwise(draw, vocabulary, tensors, supply)]
        line = draw(st.one_of(st.none(), source_lines))
        chosen = draw(_PHASES) if phase is None else phase
        nodes += [replace(node, line=line, phase=chosen) for node in called]
        values += [value for node in called for value in node.results]
    return Graph(taken, tuple(nodes), _outputs(draw, values, vocabulary, symbols))


EFFECTS: st.SearchStrategy[Effect | None] = st.sampled_from((None, "draws", "acts"))
_PHASES: st.SearchStrategy[Phase] = st.sampled_from(("forward", "forward", "backward"))


def _elementwise(draw: st.DrawFn, vocabulary: Calls, tensors: list[Value], supply: Names) -> Node:
    """An op on tensors of one shape and dtype; its result is row-major."""
    first = draw(st.sampled_from(tensors))
    assert isinstance(first.type, TensorType)
    alike = [value for value in tensors if _same(value.type, first.type)]
    target, count = draw(st.sampled_from(vocabulary.elementwise))
    operands: tuple[Arg, ...] = (Ref(first.name), *(Ref(draw(st.sampled_from(alike)).name) for _ in range(count - 1)))
    result = TensorType(
        first.type.dtype, first.type.shape, contiguous_stride(first.type.shape), device=first.type.device
    )
    return Node(target, operands, {}, (Value(supply.fresh(), result),))


def _of_vocabulary(draw: st.DrawFn, known: Sequence[str], tensors: list[Value], supply: Names) -> list[Node]:
    """A call of one of its ops, on values of the right types; behind calls that make those that there are not."""
    near: list[ValueType | None] = [None, *[value.type for value in tensors[-3:]]]
    first = draw(st.sampled_from(near))
    assert first is None or isinstance(first, TensorType)
    graph = draw(calls(one_of(draw, known, len(tensors)), first))
    (call,) = graph.nodes
    made: list[Node] = []
    names: dict[str, str] = {}
    for operand in graph.inputs:
        alike = [value.name for value in tensors if value.type == operand.type]
        if not alike:
            made.append(_zeros(operand.type, supply.fresh()))
            alike = [made[-1].results[0].name]
        names[operand.name] = draw(st.sampled_from(alike))
    results = tuple([Value(supply.fresh(), value.type) for value in call.results])
    return [*made, replace(rename_node(call, names), results=results)]


def _zeros(kind: ValueType, name: str) -> Node:
    """A call that makes a tensor: of zeros, which every index, weight and operand may be."""
    assert isinstance(kind, TensorType)
    args = (List(kind.shape),)
    return Node("aten.zeros.default", args, {"dtype": DTypeArg(kind.dtype)}, (Value(name, kind),))


def _same(one: ValueType, other: TensorType) -> bool:
    return isinstance(one, TensorType) and (one.dtype, one.shape, one.device) == (
        other.dtype,
        other.shape,
        other.device,
    )


def _opaque(draw: st.DrawFn, vocabulary: Calls, values: list[Value], symbols: Sequence[str], supply: Names) -> Node:
    """A call that only its form makes valid."""
    assert vocabulary.opaque is not None
    arg = args([value.name for value in values], symbols, vocabulary.handles)
    results = draw(st.lists(value_types(symbols), max_size=3))
    return Node(
        draw(vocabulary.opaque),
        tuple(draw(st.lists(arg, max_size=3))),
        draw(st.dictionaries(argument_names, arg, max_size=2)),
        tuple(Value(supply.fresh(), kind) for kind in results),
        effect=draw(EFFECTS),
    )


def _outputs(draw: st.DrawFn, values: list[Value], vocabulary: Calls, symbols: Sequence[str]) -> tuple[Arg, ...]:
    """References to tensors; literals too, where calls may be opaque."""
    tensors = [value.name for value in values if isinstance(value.type, TensorType)]
    chosen: list[Arg] = []
    if tensors:
        chosen += [Ref(name) for name in draw(st.lists(st.sampled_from(tensors), max_size=3))]
    if vocabulary.opaque is not None:
        chosen += draw(st.lists(args([], symbols, vocabulary.handles), max_size=1))
    return tuple(chosen)


def result_types(graph: Graph) -> tuple[ValueType | None, ...]:
    """The types of the outputs; None for a literal."""
    known = definitions(graph)
    return tuple(known[output.name].type if isinstance(output, Ref) else None for output in graph.outputs)
