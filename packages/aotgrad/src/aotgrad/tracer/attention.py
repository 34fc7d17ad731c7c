"""Attention on devices other than the CPU.

Abstract tensors are CPU tensors to C++, so that `scaled_dot_product_attention` chooses the CPU's fused op for them. On
another device a fused kernel of that device takes its place; where there is none, the op is written out: products,
softmax, and its gradient by the log-sum-exp, scores in float32.

Source of the gradient: Dao et al., "FlashAttention" (2022), appendix B.

And the inference ops of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer`, one op each in eager under no_grad,
written out as the C++ of the ops does it (aten/src/ATen/native/transformers): products and fused attention like in
training, and what stands between those fuses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from absint import Meta
from absint.forms.attention import among, attention
from absint.schema import OpRecord
from aotgrad.errors import NoFunctionalForm
from aotgrad.tracer.flex_attention import has_kernels
from aotgrad.tracer.fused_attention import (
    ALIGNMENT,
    MATH,
    Kernels,
    by_name,
    fused_backward,
    fused_forward,
    has_dense_rows,
    kernels,
    laid_out_as_eagers,
    operands,
    repeats,
)

if TYPE_CHECKING:
    from aotgrad.tracer.mode import TraceMode


ATTENTION = "torch.nn.functional.scaled_dot_product_attention"

aten = torch.ops.aten
_LOW = (torch.float16, torch.bfloat16)


def attend(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal, *, attn_mask, scale):
    the output (N, heads, T, C) in memory of the order in which eager has it, and the log-sum-exp of each row of
    scores."""
    named = by_name(record, args, kwargs)
    asked = _asked(mode, named)
    if asked.taken is not None:
        out, fused = fused_forward(mode, asked.taken, operands(mode, named))
        mode.attentions[fused.logsumexp.name] = fused
        if asked.taken != asked.eager:
            out = laid_out_as_eagers(mode, out, asked.eager, named["query"].meta)
        return mode.tensors((out, fused.logsumexp))
    with mode:
        work = _Attention(mode, record, named)
        scores = work.scores()
        rows = scores.logsumexp(-1)
        out = _product(work.weights(scores, rows), work.value).to(work.dtype)
        if asked.eager != MATH:
            out = out.permute(0, 2, 1, 3).clone(memory_format=torch.contiguous_format).permute(0, 2, 1, 3)
        return _results(mode, out, rows)


def attend_backward(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Its backward (grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask, scale): the
    gradients of query, key and value."""
    named = by_name(record, args, kwargs)
    fused = mode.attentions.get(mode.content(args[5]).name)
    if fused is not None:
        return mode.tensors(fused_backward(mode, fused, mode.content(args[0]), mode.content(args[4]))[:3])
    with mode:
        work = _Attention(mode, record, named)
        grad, out = _wide(args[0]), _wide(args[4])
        weights = work.weights(work.scores(), args[5])
        to_weights = _product(grad, work.value.mT)
        to_scores = weights * (to_weights - (grad * out).sum(-1, keepdim=True)) * work.scale
        found = (
            _product(to_scores, work.key),
            work.together(_product(to_scores.mT, work.query)),
            work.together(_product(weights.mT, grad)),
        )
        return _results(mode, *[tensor.to(work.dtype) for tensor in found])


def attention_call(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False, mode: TraceMode | None = None,
) -> Any:  # fmt: skip
    """`scaled_dot_product_attention`, as the op of the CPU's that `attend` answers where the device is another.

    A mask with a gradient has it from the memory-efficient kernel, if that takes the rest. mode: the trace's, where
    `attend` finds what eager was asked for already.
    """
    mask = attn_mask
    if mask is not None and mask.requires_grad and not torch.is_grad_enabled():
        mask = mask.detach()
    if mask is not None and mask.requires_grad:
        metas = [tensor.meta for tensor in (query, key, value)]
        same = all(tensor.dim() == 4 and tensor.dtype == mask.dtype for tensor in (query, key, value))
        asked_for_mask = kernels(metas, mask.meta, is_causal, scale, dropout_p, mask_grad=True) if same else None
        if asked_for_mask is not None and asked_for_mask.taken is not None:
            keys = key.shape[2]
            if keys % ALIGNMENT:
                mask = torch.nn.functional.pad(mask, (0, -keys % ALIGNMENT)).narrow(-1, 0, keys)
            whole = mask.expand(*query.shape[:3], keys)
            op = aten._scaled_dot_product_efficient_attention
            rows = [one if has_dense_rows(one.meta) else one.contiguous() for one in (query, key, value)]
            out = op(*rows, whole, True, dropout_p, is_causal, scale=scale)[0]
            return out.contiguous() if asked_for_mask.eager == MATH else out
    chosen: list[Kernels] = [] if mode is None else mode.chosen

    def asked(query: Any, key: Any, value: Any, mask: Any, dropout: float, *numbers: Any) -> Kernels:
        """The kernel that eager takes, asked once: the answer is kept, for `attend` too."""
        if not chosen:
            meta = None if mask is None else mask.meta
            chosen.append(_kernels(mode, (query, key, value), meta, *numbers, dropout))
        return chosen[0]

    def hidden(*given: Any) -> float:
        """What eager adds to the scores that a boolean mask hides: -inf, but for cuDNN's kernel the least float16. A
        query without keys tells them apart."""
        is_cudnn = all(tensor.dim() == 4 for tensor in given[:3]) and asked(*given).eager == "cudnn"
        return -65504.0 if is_cudnn else -math.inf

    rest = {"is_fused": lambda *given: asked(*given).taken is not None, "hidden": hidden}
    try:
        return attention(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa, **rest)
    finally:
        chosen.clear()


def attention_among_call(
    mode: TraceMode, query: Any, key: Any, value: Any, mask: Any, dropout: float, is_causal: bool,
    scale: float | None, enable_gqa: bool, kernels: list[str],
) -> Any:  # fmt: skip
    """`attention_call` where the program says which kernels may be taken."""
    with among(kernels):
        return attention_call(
            query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=enable_gqa, mode=mode
        )


def _shares_keys(mode: TraceMode, query: Any, key: Any) -> bool:
    """Whether the keys of one query are those of fewer heads, repeated."""
    return query.shape[-2] == 1 and repeats(mode.recorder, mode.content(key))


def _asked(mode: TraceMode, named: dict[str, Any]) -> Kernels:
    """The kernels for the operands of the op."""
    if mode.chosen:
        return mode.chosen.pop()
    given, tensors = operands(mode, named), [named[key] for key in ("query", "key", "value")]
    mask = None if given.mask is None else mode.recorder.metas[given.mask.name]
    return _kernels(mode, tensors, mask, given.is_causal, given.scale, given.dropout)


def _kernels(mode: TraceMode | None, tensors: Sequence[Any], mask: Meta | None, *numbers: Any) -> Kernels:
    """The kernels for query, key and value. mode: the trace's, which knows where they come from and what else there
    is."""
    known = {}
    if mode is not None:
        has_flex = mode.replaces_attention and has_kernels(mode, tensors)
        known = {"shares_keys": _shares_keys(mode, *tensors[:2]), "has_flex": has_flex}
    return kernels([tensor.meta for tensor in tensors], mask, *numbers, **known)


class _Attention:
    """One attention: its operands in the dtype of the scores, and the ops that both directions use."""

    def __init__(self, mode: TraceMode, record: OpRecord, named: dict[str, Any]) -> None:
        query, key, value = (named[name] for name in ("query", "key", "value"))
        if named.get("dropout_p"):
            raise NoFunctionalForm(f"{record.name} with dropout on {query.device}")
        given = operands(mode, named)
        self.is_causal, self.mask, self.scale = given.is_causal, named.get("attn_mask"), given.scale
        self.dtype = query.dtype
        self.group = query.shape[1] // key.shape[1]
        self.query, self.key, self.value = _wide(query), self.apart(key), self.apart(value)

    def apart(self, tensor: Any) -> Any:
        """Keys or values with a head for each head of the query: groups of these share one."""
        tensor = _wide(tensor)
        if self.group == 1:
            return tensor
        spread = tensor.unsqueeze(2).expand(-1, -1, self.group, -1, -1)
        return spread.clone(memory_format=torch.contiguous_format).flatten(1, 2)

    def together(self, gradient: Any) -> Any:
        """The gradient of what `apart` was given."""
        return gradient if self.group == 1 else gradient.unflatten(1, (-1, self.group)).sum(2)

    def scores(self) -> Any:
        """query @ key^T * scale, -inf where the mask forbids."""
        scores = _product(self.query, self.key.mT) * self.scale
        if self.is_causal:
            all_pairs = aten.full.default(scores.shape[-2:], True, dtype=torch.bool, device=scores.device)
            scores = scores.masked_fill(all_pairs.triu(1), -math.inf)
        if self.mask is None:
            return scores
        if self.mask.dtype == torch.bool:
            return scores.masked_fill(self.mask.logical_not(), -math.inf)
        return scores + self.mask

    def weights(self, scores: Any, rows: Any) -> Any:
        """softmax(scores), given the log-sum-exp of its rows; zeros in a row that a mask forbids whole."""
        if self.mask is not None:
            rows = rows.masked_fill(rows == -math.inf, 0.0)
        return (scores - rows.unsqueeze(-1)).exp()


def _wide(tensor: Any) -> Any:
    """In the dtype of the scores."""
    return tensor.float() if tensor.dtype in _LOW else tensor


def _product(first: Any, second: Any) -> Any:
    """Matrix products over the leading two dimensions."""
    return torch.bmm(first.flatten(0, 1), second.flatten(0, 1)).unflatten(0, first.shape[:2])


def _results(mode: TraceMode, *tensors: Any) -> Any:
    """Tensors without a history for what was computed."""
    return mode.tensors(tuple([mode.content(tensor) for tensor in tensors]))


def multi_head_attention(
    query: Any, key: Any, value: Any, embed_dim: int, num_head: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any,
    proj_bias: Any, mask: Any = None, need_weights: bool = True, average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """`aten._native_multi_head_attention`: (N, T, C) of query, (N, S, C) of key and value; weights or None.

    mask: true where a key is left out; of (T, S) for mask_type 0, of (N, S) for 1, of (N, heads, T, S) for 2. A query
    without keys gives nan, as eager does.
    """
    parts = _projected(query, key, value, embed_dim, qkv_weight, qkv_bias)
    q, k, v = (part.unflatten(-1, (num_head, embed_dim // num_head)).transpose(1, 2) for part in parts)
    if mask is None and not need_weights:
        weights, attended = None, attention_call(q, k, v)
    else:
        scores = (q * (embed_dim // num_head) ** -0.5) @ k.transpose(-2, -1)
        if mask is not None:
            hidden = mask[:, None, None, :] if mask_type == 1 else mask
            scores = scores.masked_fill(hidden.to(torch.bool), float("-inf"))
        weights = scores.softmax(-1)
        attended = weights @ v
    output = F.linear(attended.transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return output, None
    return output, weights.mean(1) if average_attn_weights else weights


def _projected(query: Any, key: Any, value: Any, width: int, weight: Any, bias: Any) -> tuple[Any, ...]:
    """Query, key and value behind their projections, which are one product where one tensor is all three."""
    if query is key and key is value:
        return F.linear(query, weight, bias).chunk(3, -1)
    places = (slice(0, width), slice(width, 2 * width), slice(2 * width, 3 * width))
    return tuple(F.linear(x, weight[place], bias[place]) for x, place in zip((query, key, value), places, strict=True))


def encoder_layer(
    src: Any, embed_dim: int, num_heads: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any, proj_bias: Any,
    use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Any, norm_bias_1: Any, norm_weight_2: Any,
    norm_bias_2: Any, ffn_weight_1: Any, ffn_bias_1: Any, ffn_weight_2: Any, ffn_bias_2: Any, mask: Any = None,
    mask_type: int | None = None,
) -> Any:  # fmt: skip
    """`aten._transformer_encoder_layer_fwd` of (N, T, C). Its gelu is the one by tanh on CUDA, as eager's is there."""

    def first(x: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attend(x: Any) -> Any:
        given = (qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type)
        return multi_head_attention(x, x, x, embed_dim, num_heads, *given)[0]

    def feed_forward(x: Any) -> Any:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        gelu = "tanh" if src.is_cuda else "none"
        return F.linear(F.gelu(hidden, approximate=gelu) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attend(first(src))
        return x + feed_forward(second(x))
    x = first(src + attend(src))
    return second(x + feed_forward(x))
