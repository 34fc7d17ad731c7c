"""FlexAttention in the trace: the op of `stagewire.flex_attention`, whose functions become graphs of ATen.

The gradient of a score is traced as a function of its own, through autograd as everything is. What kernels are not made
for is traced as what it means, all scores in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace
from torch import Tensor

from absint import to_wire
from absint.flex_attention import LN2
from absint.meta import Meta, contiguous
from absint.strides import preserve_stride
from absint.symbolic import dim_of
from aotgrad.joint import Joint
from stagewire.capture import Capture, GlobalState, Input
from stagewire.expr import Expr, symbol
from stagewire.flex_attention import BACKWARD, FORWARD, NO_BLOCKS
from stagewire.grad import Fresh
from stagewire.graph import Graph, MemoryFormatArg, Node, Ref, Value
from stagewire.parser import parse_document
from stagewire.printer import print_graph
from stagewire.substitution import replace_symbols
from stagewire.types import TensorType

if TYPE_CHECKING:
    from aotgrad.tracer.mode import TraceMode

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDEST, SMALLEST_TILE = 256, 16
"""Elements of a head; rows or columns of what kernels compute at once."""

Trace = Callable[[Capture], Joint]
Arguments = tuple[list[Tensor], list[Tensor], list[str], float, list[int], list[str]]
"""Of the op, behind query, key and value."""


def attend(
    mode: TraceMode, trace: Trace, query: Tensor, key: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The op on traced tensors. trace: of a function."""
    operands, texts = (query, key, value), None
    if has_kernels(mode, operands) and _is_fit(operands, rest):
        texts = _functions(trace, _wants_gradients(operands), rest)
    if texts is None:
        return torch.ops.stagefold.flex_attention(query, key, value, *rest)  # type: ignore[no-any-return]
    return _Attention.apply(query, key, value, mode, texts, rest)  # type: ignore[no-any-return]


def has_kernels(mode: TraceMode, operands: Sequence[Tensor]) -> bool:
    """Whether the target has kernels for what is wanted of an attention: its gradients, too."""
    kind = operands[0].device.type
    return kind in mode.flex_attention or (f"{kind}:forward" in mode.flex_attention and not _wants_gradients(operands))


def _wants_gradients(operands: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(each.requires_grad for each in operands)


def _is_fit(operands: Sequence[Tensor], rest: Arguments) -> bool:
    """Whether kernels are made for such tensors."""
    query, key, value = operands
    blocks, captured, _, scale, block_size, _ = rest
    fixed = [size for each in operands for size in (each.shape[1], each.shape[3], each.stride(3))]
    if type(scale) not in (int, float) or not all(type(size) is int for size in (*fixed, *block_size)):
        return False
    dtypes, devices = {each.dtype for each in operands}, {each.device for each in (*operands, *blocks, *captured)}
    if len(dtypes) + len(devices) > 2 or query.dtype not in DTYPES or any(each.requires_grad for each in captured):
        return False
    if min(query.numel(), key.numel(), value.numel()) == 0 or max(query.shape[-1], value.shape[-1]) > WIDEST:
        return False
    fits = query.shape[0] == key.shape[0] == value.shape[0] and query.shape[1] % key.shape[1] == 0
    return fits and not any(size % SMALLEST_TILE for size in block_size if blocks)


def _functions(trace: Trace, wants: bool, rest: Arguments) -> tuple[str, str, str] | None:
    """The functions as graphs of ATen, and the gradient of the scores if it is wanted; None where one is no plain
    function."""
    score_mod, mask_mod = rest[2]
    wanted = [(score_mod, False), (mask_mod, False), (score_mod if wants else "", True)]
    texts = [_as_aten(trace, text, differentiate) if text else "" for text, differentiate in wanted]
    return None if None in texts else tuple(texts)  # type: ignore[return-value]


def _as_aten(trace: Trace, text: str, differentiate: bool) -> str | None:
    document = parse_document(text)
    assert isinstance(document, Capture)
    scores, *others = document.inputs
    if differentiate:
        type_ = replace(scores.value.type, requires_grad=True)
        scores = Input(replace(scores.value, type=type_), scores.source, "parameter")
    inputs = (scores, *map(_without_grad, others))
    graph = replace(document.graph, inputs=tuple(each.value for each in inputs))
    state = GlobalState(grad_enabled=differentiate)
    joint = trace(replace(document, inputs=inputs, graph=graph, state=state))
    binding = joint.binding
    is_plain = len(binding.outputs) == 1 and isinstance(binding.outputs[0], Fresh) and not binding.mutations
    if not is_plain or binding.constants or any(node.effect in ("draws", "acts") for node in joint.graph.nodes):
        return None
    found = joint.result_refs[0]
    if differentiate:
        found = joint.gradient_refs[0] if joint.has_backward else None
    return print_graph(_row_major(joint.graph, found)) if isinstance(found, Ref) else None


def _without_grad(one: Input) -> Input:
    if not isinstance(one.value.type, TensorType):
        return one
    return replace(one, value=replace(one.value, type=replace(one.value.type, requires_grad=False)))


def _row_major(graph: Graph, output: Ref) -> Graph:
    """A graph of this output alone, in an order of memory that is known."""
    nodes = tuple(replace(node, phase="forward", line=None, checkpoint=None) for node in graph.nodes)
    types = {value.name: value.type for value in (*graph.inputs, *(v for node in nodes for v in node.results))}
    type_ = types[output.name]
    assert isinstance(type_, TensorType)
    steps = [math.prod(type_.shape[number + 1 :]) for number in range(len(type_.shape))]  # type: ignore[arg-type]
    value = Value("output", replace(type_, stride=tuple(steps), storage_offset=0, requires_grad=False))
    layout = {"memory_format": MemoryFormatArg("contiguous_format")}
    return Graph(graph.inputs, (*nodes, Node("aten.clone.default", (output,), layout, (value,))), (Ref("output"),))


def can_be_added(mask: Meta, sizes: Sequence[Any]) -> bool:
    """Whether `adding` has a function for them: its symbols are the sizes of its inputs, so that none is an
    expression."""
    return all(isinstance(size, int) or size.text.isidentifier() for size in map(dim_of, (*sizes, *mask.shape)))


def adding(mask: Meta, sizes: Sequence[Any]) -> str:
    """The function that adds a mask to scores of such sizes."""
    given = to_wire(contiguous(tuple(sizes), torch.float32, mask.device)), to_wire(mask)
    open_sizes = dict.fromkeys(size for type_ in given for size in type_.shape if isinstance(size, Expr))
    names = {size.text: symbol(f"n{number}") for number, size in enumerate(open_sizes)}
    scores, added = (replace(replace_symbols(type_, names), storage_offset=0) for type_ in given)
    inputs = Value("scores", scores), Value("mask", added)
    node = Node("aten.add.Tensor", (Ref("scores"), Ref("mask")), {}, (Value("sum", scores),))
    return print_graph(_row_major(Graph(inputs, (node,), (Ref("sum"),)), Ref("sum")))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Any, key: Any, value: Any, mode: TraceMode, texts: Sequence[str], rest: Arguments
    ) -> tuple[Tensor, ...]:
        blocks, captured, _, scale, block_size, _ = rest
        ctx.set_materialize_grads(False)
        ctx.mode, ctx.texts, ctx.count = mode, texts, len(blocks)
        ctx.numbers = float(scale), list(block_size if blocks else [NO_BLOCKS, NO_BLOCKS])
        meta, shape = query.meta, query.meta.shape
        out = (*shape[:3], value.meta.shape[3])
        rows = contiguous(shape[:3], torch.float32, meta.device)
        types = (dense(meta, out), rows, rows)
        args = _arguments(mode, (query, key, value), blocks, captured, texts[:2], ctx.numbers)
        results = mode.fresh(mode.recorder.record(FORWARD, args, {}, types), types)
        ctx.mark_non_differentiable(results[2])
        ctx.save_for_backward(query, key, value, *results[:2], *blocks, *captured)
        return results  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, of_rows: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
        query, key, value, out, logsumexp, *others = ctx.saved_tensors
        mode, blocks, captured = ctx.mode, others[: ctx.count], others[ctx.count :]
        with mode:
            grad = torch.zeros_like(out) if grad is None else grad.contiguous()
            delta = (grad.float() * out.float()).sum(-1)
            if of_rows is not None:
                delta = delta - of_rows / LN2
        args = _arguments(mode, (query, key, value), blocks, captured, ctx.texts, ctx.numbers)
        more = mode.refs((grad, logsumexp, delta))
        types = tuple(dense(each.meta, each.meta.shape) for each in (query, key, value))
        found = mode.fresh(mode.recorder.record(BACKWARD, (*args, *more), {}, types), types)
        return (*found, None, None, None)


def dense(like: Meta, shape: tuple[int, ...]) -> Meta:
    """Dense memory in the order of `like`'s dimensions."""
    return Meta(shape, preserve_stride(shape, like.stride), like.dtype, like.device)


def _arguments(
    mode: TraceMode, operands: Sequence[Tensor], blocks: Sequence[Tensor], captured: Sequence[Tensor],
    texts: Sequence[str], numbers: tuple[float, list[int]],
) -> tuple[Any, ...]:  # fmt: skip
    refs = [mode.refs(each) for each in (*operands, list(blocks), list(captured))]
    return (*refs, list(texts), *numbers, [])
