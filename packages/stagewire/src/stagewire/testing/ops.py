"""Calls of the ops of a vocabulary that are right by construction: variations of each op's example."""

from __future__ import annotations

import re
from functools import cache

from hypothesis import strategies as st
from msgspec.structs import replace

from stagewire.expr import Dim
from stagewire.graph import Arg, Graph, List, Value, map_arg
from stagewire.parser import parse_graph
from stagewire.types import DType, TensorType, contiguous
from stagewire.vocabulary import Op, find, seen

DTYPES: tuple[DType, ...] = ("float32", "float64", "bfloat16", "int64", "int32", "bool")
Sizes = dict[Dim, Dim]
Dtypes = dict[DType, DType]
_OPERAND = re.compile(r"(\w+): (\w+\[[^\]]*\])")


@cache
def example(target: str) -> Graph:
    """The example of an op as a graph of one node, which takes its operands and returns its results."""
    op = find(target)
    assert op is not None, f"no installed vocabulary has {target}"
    call, _, results = op.example.partition(" -> ")
    names = [f"%{name}_" for name in op.results]
    kinds = re.findall(r"\w+\[[^\]]*\]", results)
    made = ", ".join(f"{name}: {kind}" for name, kind in zip(names, kinds, strict=True))
    operands = [f"input %{name}: {kind}" for name, kind in _OPERAND.findall(call)]
    called = target + _OPERAND.sub(r"%\1", call).removeprefix(op.name)
    effect = f' with effect="{op.effect}"' if op.effect else ""
    return parse_graph("\n".join([*operands, f"{made} = {called}{effect}", f"return {', '.join(names)}"]))


@st.composite
def calls(draw: st.DrawFn, target: str) -> Graph:
    """A call of an op as a graph of one node: its example, in other sizes and another dtype where it takes these."""
    given, op = example(target), find(target)
    assert op is not None
    numbers = dict.fromkeys(size for value in given.inputs for size in _type(value).shape if size != 1)
    sizes: Sizes = {number: draw(st.integers(1, 4)) for number in numbers}
    dtypes: Dtypes = {_type(value).dtype: draw(st.sampled_from(DTYPES)) for value in given.inputs[:1]}
    varied = (_varied(op, given, *chosen) for chosen in ((sizes, dtypes), (Sizes(), dtypes), (sizes, Dtypes())))
    return next((graph for graph in varied if graph is not None), given)


def _varied(op: Op, graph: Graph, sizes: Sizes, dtypes: Dtypes) -> Graph | None:
    """With other sizes and dtypes, if the op takes them."""
    (node,) = graph.nodes
    inputs = []
    for value in graph.inputs:
        kind = _type(value)
        shape = tuple([sizes.get(size, size) for size in kind.shape])
        inputs.append(Value(value.name, contiguous(dtypes.get(kind.dtype, kind.dtype), shape)))
    kinds = [parameter.kind for parameter in op.parameters]
    args = tuple([_resized(a, sizes) if k == "sizes" else a for a, k in zip(node.args, kinds, strict=True)])
    changed = replace(node, args=args)
    arguments = tuple([seen(arg, {value.name: value.type for value in inputs}) for arg in changed.args])
    if op.refusal(arguments) is not None:
        return None
    assert op.rule is not None, "examples are varied by the rule"
    types = op.rule(*arguments)
    results = tuple([Value(value.name, kind) for value, kind in zip(node.results, types, strict=True)])
    return Graph(tuple(inputs), (replace(changed, results=results),), graph.outputs)


def _resized(arg: Arg, sizes: Sizes) -> Arg:
    assert isinstance(arg, List)
    return map_arg(arg, lambda item: sizes.get(item, item) if type(item) is int else item)


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType), "operands are tensors"
    return value.type
