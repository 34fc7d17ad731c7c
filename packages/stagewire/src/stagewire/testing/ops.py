"""Calls of the ops of a vocabulary that are right by construction: variations of each op's example."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from hypothesis import strategies as st
from msgspec.structs import replace

from stagewire.expr import Dim
from stagewire.graph import Arg, Graph, List, Ref, Value, map_arg, node_references
from stagewire.loop_ops import OPS as LOOP_OPS
from stagewire.loop_ops import scalar
from stagewire.parser import parse_graph
from stagewire.types import DType, TensorType, contiguous
from stagewire.vocabulary import Op, find, namespaces, registered, seen, vocabulary

REAL: tuple[DType, ...] = (
    "float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"
)  # fmt: skip
"""Those in which torch computes whatever a record allows."""
COMMON: tuple[DType, ...] = ("float32", "float64", "bfloat16", "int64", "int32", "bool")
Sizes = dict[Dim, Dim]
Dtypes = dict[DType, DType]
Shape = tuple[Dim, ...]
_TYPE = r"\w+\[[^\]]*\](?:\{[^}]*\})?"
_OPERAND = re.compile(rf"(\w+): ({_TYPE})")


@cache
def example(target: str) -> Graph:
    """The example of an op as a graph of one node, which takes its operands and returns its results."""
    op = find(target)
    assert op is not None, f"no installed vocabulary has {target}"
    call, _, results = op.example.partition(" -> ")
    names = [f"%{name}_" for name in op.results]
    kinds = re.findall(_TYPE, results)
    made = ", ".join(f"{name}: {kind}" for name, kind in zip(names, kinds, strict=True))
    operands = [f"input %{name}: {kind}" for name, kind in _OPERAND.findall(call)]
    called = target + _OPERAND.sub(r"%\1", call).removeprefix(op.name)
    effect = f' with effect="{op.effect}"' if op.effect else ""
    return parse_graph("\n".join([*operands, f"{made} = {called}{effect}", f"return {', '.join(names)}"]))


def targets() -> tuple[str, ...]:
    """What a node of a `Prim` may call by "namespace.name": every op that has an example, of all vocabularies here."""
    return _targets(tuple(sorted({*namespaces(), *registered()} - {"loop"})))


@cache
def _targets(among: tuple[str, ...]) -> tuple[str, ...]:
    known = [found for name in among if (found := vocabulary(name)) and not found.overloads]
    return tuple([f"{v.namespace}.{name}" for v in known for name, op in sorted(v.ops.items()) if op.example])


def operator_targets() -> tuple[str, ...]:
    """The operators of torch that a node may call and that have an example, of all vocabularies here."""
    known = [found for name in sorted({*namespaces(), *registered()}) if (found := vocabulary(name))]
    return tuple([f"{v.namespace}.{name}" for v in known for name in v.exampled])


def point_ops() -> tuple[str, ...]:
    """What a kernel may compute at a point: the loop ops, and ops of vocabularies of others that take values alone."""
    return _point_ops(targets())


@cache
def _point_ops(among: tuple[str, ...]) -> tuple[str, ...]:
    return (*LOOP_OPS, *[target for target in among if not target.startswith("prims.") and _is_pointwise(target)])


def one_of(draw: st.DrawFn, ops: Sequence[str], position: int) -> str:
    """One op. The position counts, since hypothesis likes to draw the same number again."""
    numbers = st.integers(0, len(ops) - 1)
    return ops[(draw(numbers) + draw(numbers) + 31 * position) % len(ops)]


def _is_pointwise(target: str) -> bool:
    (node,), op = example(target).nodes, find(target)
    assert op is not None
    types = {value.name: scalar(_type(value).dtype) for value in example(target).inputs}
    if op.rule is None or op.effect or not types or not all(isinstance(arg, Ref | int | float) for arg in node.args):
        return False
    arguments = tuple([seen(arg, types) for arg in node.args])
    return op.refusal(arguments) is None and [kind.shape for kind in op.rule(*arguments)] == [()]


def dtypes_of(op: Op, among: tuple[DType, ...] = REAL) -> list[DType]:
    """The dtypes that the record allows for its operands."""
    sets = [constraint.dtypes for constraint in op.constraints if constraint.dtypes is not None]
    return [dtype for dtype in among if all(dtype in allowed for allowed in sets)]


@st.composite
def calls(draw: st.DrawFn, target: str, first: TensorType | None = None) -> Graph:
    """A call of an op as a graph of one node: its example, in other sizes and another dtype where it takes these and
    has a rule that says what it then gives.

    first: what its first operand should be.
    """
    given, op = example(target), find(target)
    assert op is not None
    if op.rule is None:
        return given
    numbers = dict.fromkeys(size for value in given.inputs for size in _type(value).shape if size != 1)
    sizes: Sizes = {number: draw(st.integers(1, 4)) for number in numbers}
    chosen = draw(st.sampled_from(dtypes_of(op, draw(st.sampled_from((COMMON, REAL)))) or COMMON))
    dtypes: Dtypes = {_type(value).dtype: chosen for value in given.inputs[:1]}
    trials: list[tuple[Sizes, Dtypes, Shape | None]] = [
        (sizes, dtypes, None),
        (Sizes(), dtypes, None),
        (sizes, Dtypes(), None),
    ]
    if first is not None and given.inputs:
        shape = _type(given.inputs[0]).shape
        alike: Sizes = dict(zip(shape, first.shape, strict=True)) if len(shape) == len(first.shape) else {}
        same = {_type(given.inputs[0]).dtype: first.dtype}
        whole = first.shape if len({_type(value).shape for value in given.inputs}) == 1 else None
        trials = [(Sizes(), same, whole), (alike, same, None), *trials]
    varied = (_varied(op, given, *trial) for trial in trials)
    found = next((graph for graph in varied if graph is not None), given)
    return _with_numbers(draw, op, found) if draw(st.integers(0, 3)) == 0 else found


NUMBERS = (0, 1, 2, -1, 0.0, 1.0, -0.0, 0.5)


def _with_numbers(draw: st.DrawFn, op: Op, graph: Graph) -> Graph:
    """With a number for some of the operands that may be numbers, if the op takes them and a tensor is left."""
    (node,) = graph.nodes
    free = [n for n, parameter in enumerate(op.parameters) if parameter.kind == "operand"]
    chosen = draw(st.sets(st.sampled_from(free))) if free else set()
    number = draw(st.sampled_from(NUMBERS))
    args = tuple([number if n in chosen else arg for n, arg in enumerate(node.args)])
    changed = replace(node, args=args)
    left = set(node_references(changed))
    inputs = tuple([value for value in graph.inputs if value.name in left])
    arguments = tuple([seen(arg, {value.name: value.type for value in inputs}) for arg in args])
    if not left or op.rule is None or op.refusal(arguments) is not None:
        return graph
    results = tuple([Value(value.name, kind) for value, kind in zip(node.results, op.rule(*arguments), strict=True)])
    return Graph(inputs, (replace(changed, results=results),), graph.outputs)


def _varied(op: Op, graph: Graph, sizes: Sizes, dtypes: Dtypes, shape: Shape | None) -> Graph | None:
    """With other sizes (or all operands in one other shape) and dtypes, if the op takes them."""
    (node,) = graph.nodes
    kinds = [parameter.kind for parameter in op.parameters]
    if shape is not None and {"sizes", "dims", "size", "int", "int?", "indices", "tensors"} & set(kinds):
        return None
    inputs = []
    for value in graph.inputs:
        kind = _type(value)
        other = tuple([sizes.get(size, size) for size in kind.shape]) if shape is None else shape
        inputs.append(Value(value.name, contiguous(dtypes.get(kind.dtype, kind.dtype), other)))
    args = tuple([_resized(a, sizes) if k == "sizes" else a for a, k in zip(node.args, kinds, strict=True)])
    return _with_results(op, Graph(tuple(inputs), (replace(node, args=args),), graph.outputs))


def _with_results(op: Op, graph: Graph) -> Graph | None:
    """With the types of the results that its operands have by the rule, if the op takes them."""
    (node,) = graph.nodes
    arguments = tuple([seen(arg, {value.name: value.type for value in graph.inputs}) for arg in node.args])
    if op.refusal(arguments) is not None:
        return None
    assert op.rule is not None, "examples are varied by the rule"
    types = op.rule(*arguments)
    results = tuple([Value(value.name, kind) for value, kind in zip(node.results, types, strict=True)])
    return replace(graph, nodes=(replace(node, results=results),))


def one_operand_otherwise(graph: Graph) -> Iterator[Graph]:
    """Of a graph of one node, those that its op takes of the ones with one operand of another dtype, rank or size."""
    op = find(graph.nodes[0].target)
    assert op is not None
    for at, value in enumerate(graph.inputs):
        kind = _type(value)
        sizes = [(*kind.shape[:d], n, *kind.shape[d + 1 :]) for d, size in enumerate(kind.shape) for n in _others(size)]
        types = [contiguous(dtype, kind.shape) for dtype in REAL if dtype != kind.dtype]
        types += [contiguous(kind.dtype, shape) for shape in ((1, *kind.shape), kind.shape[1:], *sizes)]
        for other in types:
            inputs = (*graph.inputs[:at], replace(value, type=other), *graph.inputs[at + 1 :])
            changed = _with_results(op, replace(graph, inputs=inputs))
            if changed is not None:
                yield changed


def _others(size: Dim) -> tuple[Dim, ...]:
    """Of no element, since positions have to be of one."""
    return (1, size + 1) if isinstance(size, int) else ()


def _resized(arg: Arg, sizes: Sizes) -> Arg:
    assert isinstance(arg, List)
    return map_arg(arg, lambda item: sizes.get(item, item) if type(item) is int else item)


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType), "operands are tensors"
    return value.type
