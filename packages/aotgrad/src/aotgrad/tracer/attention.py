"""Attention on devices other than the CPU.

Abstract tensors are CPU tensors to C++, so that `scaled_dot_product_attention` chooses the CPU's fused op for them. On
another device a fused kernel of that device takes its place; where there is none, the op is written out: products,
softmax, and its gradient by the log-sum-exp, scores in float32.

Source of the gradient: Dao et al., "FlashAttention" (2022), appendix B.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from absint.forms.attention import attention
from absint.meta import numel
from absint.schema import OpRecord
from aotgrad.errors import NoFunctionalForm
from aotgrad.tracer.fused_attention import (
    ALIGNMENT,
    Kernels,
    by_name,
    choose,
    fused_backward,
    fused_forward,
    kernels,
    operands,
)
from aotgrad.tracer.views import reshape_value
from stagewire.graph import Ref

if TYPE_CHECKING:
    from aotgrad.tracer.mode import TraceMode


ATTENTION = "torch.nn.functional.scaled_dot_product_attention"

aten = torch.ops.aten
_LOW = (torch.float16, torch.bfloat16)


def attend(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal, *, attn_mask, scale):
    the output (N, heads, T, C) in memory of (N, T, heads, C), and the log-sum-exp of each row of scores."""
    named = by_name(record, args, kwargs)
    found = _fused(mode, named)
    if found is not None:
        return found
    work = _Attention(mode, record, named)
    scores = work.scores()
    rows = work.emit(aten.logsumexp.default, scores, [-1], False)
    out = work.product(work.weights(scores, rows), work.value)
    turned = work.emit(aten.permute.default, work.cast(out), [0, 2, 1, 3])
    dense = mode.emit(aten.clone.default, (turned,), {"memory_format": torch.contiguous_format})
    return mode.tensors((work.emit(aten.permute.default, dense, [0, 2, 1, 3]), rows))


def attend_backward(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Its backward (grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask, scale): the
    gradients of query, key and value."""
    named = by_name(record, args, kwargs)
    fused = mode.attentions.get(mode.content(args[5]).name)
    if fused is not None:
        grad, out = mode.content(args[0]), mode.content(args[4])
        return mode.tensors(fused_backward(mode, fused, operands(mode, named), grad, out)[:3])
    work = _Attention(mode, record, named)
    grad, out, rows = work.operand(args[0]), work.operand(args[4]), mode.content(args[5])
    weights = work.weights(work.scores(), rows)
    to_weights = work.product(grad, work.turn(work.value))
    mean = work.emit(aten.sum.dim_IntList, work.emit(aten.mul.Tensor, grad, out), [-1], True)
    to_scores = work.emit(aten.mul.Tensor, weights, work.emit(aten.sub.Tensor, to_weights, mean))
    to_scores = work.emit(aten.mul.Scalar, to_scores, work.scale)
    found = (
        work.product(to_scores, work.key),
        work.together(work.product(work.turn(to_scores), work.query)),
        work.together(work.product(work.turn(weights), grad)),
    )
    return mode.tensors(tuple([work.cast(ref) for ref in found]))


def attention_call(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False, chosen: list[Kernels] | None = None,
) -> Any:  # fmt: skip
    """`scaled_dot_product_attention`, as the op of the CPU's that `attend` answers where the device is another.

    A mask with a gradient has it from the memory-efficient kernel, if that takes the rest. chosen: the trace's, where
    `attend` finds what eager was asked for already.
    """
    mask = attn_mask
    if mask is not None and mask.requires_grad and not torch.is_grad_enabled():
        mask = mask.detach()
    if mask is not None and mask.requires_grad:
        metas = [tensor.meta for tensor in (query, key, value)]
        same = all(tensor.dim() == 4 and tensor.dtype == mask.dtype for tensor in (query, key, value))
        if same and choose(metas, mask.meta, is_causal, scale, dropout_p, mask_grad=True) is not None:
            keys = key.shape[2]
            if keys % ALIGNMENT:
                mask = torch.nn.functional.pad(mask, (0, -keys % ALIGNMENT)).narrow(-1, 0, keys)
            whole = mask.expand(*query.shape[:3], keys)
            op = aten._scaled_dot_product_efficient_attention
            return op(query, key, value, whole, True, dropout_p, is_causal, scale=scale)[0]
    question = _Question([] if chosen is None else chosen)
    rest = {"is_fused": question.is_fused, "hidden": question.hidden}
    try:
        return attention(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa, **rest)
    finally:
        question.answer.clear()


class _Question(NamedTuple):
    """Which kernel eager takes for one attention, asked once: the answer is kept, for `attend` too."""

    answer: list[Kernels]

    def hidden(
        self, query: Any, key: Any, value: Any, mask: Any, dropout: float, is_causal: bool, scale: float | None
    ) -> float:
        """What eager adds to the scores that a boolean mask hides: -inf, but for cuDNN's kernel the least float16. A
        query without keys tells them apart."""
        tensors = (query, key, value)
        if any(tensor.dim() != 4 for tensor in tensors):
            return -math.inf
        return -65504.0 if self._kernels(tensors, mask, dropout, is_causal, scale).eager == "cudnn" else -math.inf

    def is_fused(
        self, query: Any, key: Any, value: Any, mask: Any, dropout: float, is_causal: bool, scale: float | None
    ) -> bool:
        """Whether a fused kernel takes it."""
        return self._kernels((query, key, value), mask, dropout, is_causal, scale).taken is not None

    def _kernels(self, tensors: Any, mask: Any, dropout: float, is_causal: bool, scale: float | None) -> Kernels:
        if not self.answer:
            metas = [tensor.meta for tensor in tensors]
            self.answer.append(kernels(metas, None if mask is None else mask.meta, is_causal, scale, dropout))
        return self.answer[0]


def _fused(mode: TraceMode, named: dict[str, Any]) -> Any:
    """The op by a fused kernel of its device; None where eager would take none."""
    given = operands(mode, named)
    if mode.chosen:
        kernel = mode.chosen.pop().taken
    else:
        mask = None if given.mask is None else mode.recorder.metas[given.mask.name]
        metas = [named[key].meta for key in ("query", "key", "value")]
        kernel = kernels(metas, mask, given.is_causal, given.scale, given.dropout).taken
    if kernel is None:
        return None
    out, fused = fused_forward(mode, kernel, given)
    mode.attentions[fused.logsumexp.name] = fused
    return mode.tensors((out, fused.logsumexp))


class _Attention:
    """One attention: its operands as values in the dtype of the scores, and the ops that both directions use."""

    def __init__(self, mode: TraceMode, record: OpRecord, named: dict[str, Any]) -> None:
        tensors = [named[key] for key in ("query", "key", "value")]
        query, key, _ = (tensor.meta for tensor in tensors)
        if named.get("dropout_p"):
            raise NoFunctionalForm(f"{record.name} with dropout on {query.device}")
        self.mode, self.dtype = mode, query.dtype
        self.group = query.shape[1] // key.shape[1]
        self.query = self.operand(tensors[0])
        self.key, self.value = (self.apart(self.operand(tensor)) for tensor in tensors[1:])
        given = operands(mode, named)
        self.is_causal, self.mask, self.scale = given.is_causal, given.mask, given.scale

    def apart(self, value: Ref) -> Ref:
        """Keys or values with a head for each head of the query: groups of these share one."""
        if self.group == 1:
            return value
        batch, heads, *rest = self.mode.recorder.metas[value.name].shape
        spread = self.emit(aten.expand.default, self.emit(aten.unsqueeze.default, value, 2),
                           [batch, heads, self.group, *rest])  # fmt: skip
        dense = self.mode.emit(aten.clone.default, (spread,), {"memory_format": torch.contiguous_format})
        return self.emit(aten.view.default, dense, [batch, heads * self.group, *rest])

    def together(self, gradient: Ref) -> Ref:
        """The gradient of what `apart` was given."""
        if self.group == 1:
            return gradient
        batch, heads, *rest = self.mode.recorder.metas[gradient.name].shape
        groups = self.emit(aten.view.default, gradient, [batch, heads // self.group, self.group, *rest])
        return self.emit(aten.sum.dim_IntList, groups, [2], False)

    def emit(self, func: Any, *args: Any) -> Ref:
        """One recorded op."""
        return self.mode.emit(func, args, {})

    def operand(self, tensor: Any) -> Ref:
        """A tensor's content in the dtype of the scores."""
        value = self.mode.content(tensor)
        if tensor.meta.dtype not in _LOW:
            return value
        return self.mode.emit(aten._to_copy.default, (value,), {"dtype": torch.float32})

    def cast(self, value: Ref) -> Ref:
        """Back to the dtype of the operands."""
        if self.dtype not in _LOW:
            return value
        return self.mode.emit(aten._to_copy.default, (value,), {"dtype": self.dtype})

    def turn(self, value: Ref) -> Ref:
        """The last two dimensions exchanged."""
        return self.emit(aten.transpose.int, value, -2, -1)

    def product(self, first: Ref, second: Ref) -> Ref:
        """Matrix products over the leading two dimensions."""
        metas = self.mode.recorder.metas
        batch = metas[first.name].shape[:2]
        flat = [
            reshape_value(self.mode.emit, metas, ref, (numel(batch), *metas[ref.name].shape[2:]))
            for ref in (first, second)
        ]
        result = self.emit(aten.bmm.default, *flat)
        return self.emit(aten.view.default, result, [*batch, *metas[result.name].shape[1:]])

    def scores(self) -> Ref:
        """query @ key^T * scale, -inf where the mask forbids."""
        metas = self.mode.recorder.metas
        scores = self.emit(aten.mul.Scalar, self.product(self.query, self.turn(self.key)), self.scale)
        if self.is_causal:
            meta = metas[scores.name]
            options = {"dtype": torch.bool, "device": meta.device}
            all_pairs = self.mode.emit(aten.full.default, (list(meta.shape[-2:]), True), options)
            scores = self.emit(aten.masked_fill.Scalar, scores, self.emit(aten.triu.default, all_pairs, 1), -math.inf)
        if self.mask is None:
            return scores
        if metas[self.mask.name].dtype is torch.bool:
            forbidden = self.emit(aten.logical_not.default, self.mask)
            return self.emit(aten.masked_fill.Scalar, scores, forbidden, -math.inf)
        return self.emit(aten.add.Tensor, scores, self.mask)

    def weights(self, scores: Ref, rows: Ref) -> Ref:
        """softmax(scores), given the log-sum-exp of its rows; zeros in a row that a mask forbids whole."""
        if self.mask is not None:
            rows = self.emit(aten.masked_fill.Scalar, rows, self.emit(aten.eq.Scalar, rows, -math.inf), 0.0)
        return self.emit(
            aten.exp.default, self.emit(aten.sub.Tensor, scores, self.emit(aten.unsqueeze.default, rows, -1))
        )
