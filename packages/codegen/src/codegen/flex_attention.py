"""FlexAttention (`stagewire.flex_attention`): the calls that kernels of ours compute (`cpp/flex_attention.py`,
`triton/flex_kernels.py`).

No scores are in memory, and none are computed in blocks without a key. What the functions of the program are is loops
over all scores, of which each has to be one: a call with others stays what it means.

Source: Dong et al., "Flex Attention" (2024), of which the blocks are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from codegen.element_loops import Axes, Dimension, only_store, pieces
from stagewire import flex_attention as op
from stagewire.expr import Dim, Expr
from stagewire.graph import Arg, List, Ref
from stagewire.loop import Axis, Extern, Free, Kernel, Load, Loop, LoopGraph, Operand, Statement, Store
from stagewire.parser import parse_document
from stagewire.statements import rename, results
from stagewire.substitution import replace_symbols
from stagewire.types import TensorType, extent

SCORES, TANGENT = "scores", "tangent"
"""What the statements of a function load in the place of buffers."""
LARGEST = 2**31 - 1
"""Elements that a buffer may reach over."""


@dataclass(frozen=True)
class Function:
    """A function of one score. axes: of heads of all batches, of queries, of keys, as its statements need them."""

    axes: Axes
    statements: tuple[Statement, ...]
    value: Operand


@dataclass(frozen=True)
class Attention:
    """A call that kernels can compute. more: grad, logsumexp and delta of the backward."""

    query: str
    key: str
    value: str
    blocks: tuple[str, ...]
    captured: tuple[str, ...]
    functions: tuple[Function | None, ...]
    scale: float
    block_size: tuple[int, int]
    more: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def operands(self) -> tuple[str, ...]:
        """All buffers that it reads."""
        return (self.query, self.key, self.value, *self.more, *self.blocks, *self.captured)


def attentions_of(graph: LoopGraph, types: Mapping[str, TensorType]) -> Iterator[tuple[int, Attention]]:
    """The calls of a graph that kernels of ours can compute, with their numbers among its steps."""
    for number, step in enumerate(graph.steps):
        call = attention_of(step, types) if isinstance(step, Extern) else None
        if call is not None:
            yield number, call


def attention_of(call: Extern, types: Mapping[str, TensorType]) -> Attention | None:
    """A call that kernels of ours can compute."""
    if call.target not in (op.FORWARD, op.BACKWARD) or call.kwargs:
        return None
    given, more = op.Call(*call.args[: len(op.Call._fields)]), _names(call.args[len(op.Call._fields) :])
    operands = _names((given.query, given.key, given.value))
    blocks, captured = _names(_items(given.blocks)), _names(_items(given.captured))
    buffers = [*operands, *blocks, *captured, *more, *filter(None, call.results)]
    fixed = [n for name in operands for n in (types[name].shape[1], types[name].shape[3])]
    extents = [extent(types[name]) for name in buffers]
    if not all(isinstance(n, int) for n in fixed) or any(isinstance(n, int) and n > LARGEST for n in extents):
        return None
    shape = (*types[operands[0]].shape[:3], types[operands[1]].shape[2])
    block_size, scale = _items(given.block_size), given.scale
    if not isinstance(scale, float):
        return None
    forms = [form for form in _items(given.forms) if isinstance(form, str)]
    functions = [function_of(form, n, captured, types, shape) if form else None for n, form in enumerate(forms)]  # type: ignore[arg-type]
    if len(forms) != len(_items(given.functions)) or any(f and not g for f, g in zip(forms, functions, strict=True)):
        return None
    return Attention(*operands, blocks, captured, tuple(functions), scale, block_size, more, call.results)  # type: ignore


def _items(arg: Arg) -> tuple[Arg, ...]:
    return arg.items if isinstance(arg, List) else ()


def _names(args: Sequence[Arg]) -> tuple[str, ...]:
    return tuple([arg.name for arg in args if isinstance(arg, Ref)])


def function_of(
    text: str, number: int, captured: Sequence[str], types: Mapping[str, TensorType], shape: tuple[Dim, ...]
) -> Function | None:
    """The function that a form is, of scores of this shape; None if it is more than one loop over them.

    number: begins the names of its values.
    """
    document = parse_document(text)
    assert isinstance(document, Loop)
    graph = _of_sizes(document.forward, [shape, *(types[name].shape for name in captured), shape])
    kernels = [step for step in graph.steps if isinstance(step, Kernel)]
    if len(kernels) != 1 or not all(isinstance(step, Kernel | Free) for step in graph.steps):
        return None
    (kernel,), own = kernels, {buffer.name: buffer.type for buffer in graph.buffers}
    inputs = dict(zip(graph.inputs, (SCORES, *captured, TANGENT), strict=False))
    for name, buffer in inputs.items():
        if buffer not in (SCORES, TANGENT) and _layout(own[name]) != _layout(types[buffer]):
            return None
    store, body = only_store(kernel, of_open_sizes=True)
    if store is None or not all(_is_given(one, inputs, store) for one in body if isinstance(one, Load)):
        return None
    batch, heads, rows, columns = shape
    every = [Dimension(2, columns, 1), Dimension(1, rows, columns), Dimension(0, batch * heads, rows * columns)]
    found = pieces(store.index, kernel.axes, [one for one in every if one.size != 1], body)
    if found is None:
        return None
    names = {name: f"function {number} {name}" for one in body for name in results(one)}
    axes = {axis.name: f"function {number} {axis.name}" for part in found[0] for axis in part}
    named = tuple(rename(_from(one, inputs), {**names, **axes}) for one in found[1])
    parts = tuple(tuple(Axis(axes[axis.name], axis.size) for axis in part) for part in found[0])
    value = Ref(names[store.value.name]) if isinstance(store.value, Ref) else store.value
    return Function(parts, named, value)  # type: ignore[arg-type]


def _of_sizes(graph: LoopGraph, shapes: Sequence[tuple[Dim, ...]]) -> LoopGraph:
    """The graph with sizes of the program in the place of its own symbols. shapes: of its inputs there."""
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    meanings = {
        own.text: size
        for name, shape in zip(graph.inputs, shapes, strict=False)
        for own, size in zip(types[name].shape, shape, strict=True)
        if isinstance(own, Expr) and own.text.isidentifier()
    }
    return replace_symbols(graph, meanings)


def _layout(type_: TensorType) -> tuple[object, ...]:
    return type_.dtype, type_.shape, type_.stride


def _is_given(load: Load, inputs: Mapping[str, str], store: Store) -> bool:
    """Whether an input is read, the scores at the point of the store alone."""
    return load.buffer in inputs and (inputs[load.buffer] not in (SCORES, TANGENT) or load.index == store.index)


def _from(statement: Statement, inputs: Mapping[str, str]) -> Statement:
    return replace(statement, buffer=inputs[statement.buffer]) if isinstance(statement, Load) else statement


def row_of_blocks(type_: TensorType, text: Callable[[Dim], str]) -> str:
    """Where what is listed for `row`, a row of blocks of head `h` of batch `b`, begins in a list, as C++ and Triton.
    text: of a size."""
    ways = zip(("b", "h", "row"), type_.shape, type_.stride, strict=False)
    return " + ".join(f"{way} * {text(step)}" for way, size, step in ways if size != 1) or "0"
