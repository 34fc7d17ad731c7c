"""Strategies for graphs that verify: calls of elementwise ops with right types, and calls of anything on request."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hypothesis import strategies as st
from msgspec.structs import replace

from stagewire.graph import Arg, Effect, Graph, Node, Phase, Ref, Value, definitions
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
from stagewire.types import TensorType, ValueType, contiguous_stride


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """What the calls of a graph may name: `elementwise` ops by number of tensors, and `opaque` targets of any meaning.

    With `opaque` None, every node is elementwise on tensors of one type: such a graph has a meaning.
    """

    elementwise: tuple[tuple[str, int], ...]
    opaque: st.SearchStrategy[str] | None = None
    handles: bool = True


TORCH_OPS = (("torch.relu", 1), ("torch.neg", 1), ("torch.add", 2), ("operator.mul", 2))
ATEN_OPS = (("aten.relu.default", 1), ("aten.neg.default", 1), ("aten.add.Tensor", 2), ("aten.mul.Tensor", 2))
PRIM_OPS = (("prims.neg", 1), ("prims.abs", 1), ("prims.add", 2), ("prims.mul", 2))

TORCH = Vocabulary(TORCH_OPS, st.one_of(qualified_names, names))
ATEN = Vocabulary(ATEN_OPS, qualified_names)
PRIMS = Vocabulary(PRIM_OPS, qualified_names)


@st.composite
def graphs(
    draw: st.DrawFn,
    vocabulary: Vocabulary = ATEN,
    inputs: Sequence[ValueType] | None = None,
    symbols: Sequence[str] = (),
    most_nodes: int = 5,
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
        if not opaque and not tensors:
            break
        if opaque:
            node = _opaque(draw, vocabulary, values, symbols, supply)
        else:
            node = _elementwise(draw, vocabulary, tensors, supply)
        line = draw(st.one_of(st.none(), source_lines))
        chosen = draw(_PHASES) if phase is None else phase
        nodes.append(replace(node, line=line, phase=chosen))
        values += node.results
    return Graph(taken, tuple(nodes), _outputs(draw, values, vocabulary, symbols))


EFFECTS: st.SearchStrategy[Effect | None] = st.sampled_from((None, "draws", "acts"))
_PHASES: st.SearchStrategy[Phase] = st.sampled_from(("forward", "forward", "backward"))


def _elementwise(draw: st.DrawFn, vocabulary: Vocabulary, tensors: list[Value], supply: Names) -> Node:
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


def _same(one: ValueType, other: TensorType) -> bool:
    return isinstance(one, TensorType) and (one.dtype, one.shape, one.device) == (
        other.dtype,
        other.shape,
        other.device,
    )


def _opaque(
    draw: st.DrawFn, vocabulary: Vocabulary, values: list[Value], symbols: Sequence[str], supply: Names
) -> Node:
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


def _outputs(draw: st.DrawFn, values: list[Value], vocabulary: Vocabulary, symbols: Sequence[str]) -> tuple[Arg, ...]:
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
