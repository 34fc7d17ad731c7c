"""Attention with dropout on a CPU, which the C++ of torch before 2.13 composes of products that take numbers alone.

    softmax(query * s @ (key.mT * s) + mask), dropout, @ value      s = sqrt(scale)

Bits and random numbers are those of ATen's own composition (`_scaled_dot_product_attention_math`). Without dropout
ATen has a fused op, which takes symbolic sizes.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from absint.forms.products import linear, matmul, takes_symbols
from absint.symbolic import is_symbolic

__all__ = ["ATTENTION_FORMS", "attention", "written_out"]


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """`torch.nn.functional.scaled_dot_product_attention` of tensors of the CPU."""
    tensors = [query, key, value, *(() if attn_mask is None else (attn_mask,))]
    is_open = dropout_p > 0 and any(is_symbolic(size) for tensor in tensors for size in tensor.shape)
    if is_open and not takes_symbols():
        is_plain = all(tensor.dtype == query.dtype for tensor in tensors[:3]) and not (is_causal and len(tensors) > 3)
        if is_plain and min(tensor.dim() for tensor in tensors) >= 2 and not torch.is_autocast_enabled("cpu"):
            return written_out(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def written_out(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Any:
    """The composition."""
    dtype, allows_low = query.dtype, torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()  # of CPUs too
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)
    if dtype in (torch.float16, torch.bfloat16) and not allows_low:
        query, key, value = query.float(), key.float(), value.float()
    depth = query.shape[-1]
    half = _root(1 / _root(depth)) if scale is None else abs(scale) ** 0.5
    if is_causal:
        shown = torch.ones((query.shape[-2], key.shape[-2]), dtype=torch.bool, device=query.device).tril()
        mask = torch.zeros_like(shown, dtype=query.dtype).masked_fill(~shown, -math.inf)
    if enable_gqa:
        key, value = (_for_each_head(tensor, query) for tensor in (key, value))
    first = query * (-half if scale is not None and scale < 0 else half)
    scores = matmul(first, key.transpose(-2, -1) * half)
    if mask is not None:
        scores = scores + mask
    weights = torch.dropout(torch.ops.aten._safe_softmax(scores, -1), dropout, True)
    return matmul(weights, value).to(dtype)


def _root(number: Any) -> Any:
    return math.sqrt(number) if isinstance(number, int | float) else number**0.5


def _for_each_head(tensor: Any, query: Any) -> Any:
    """Keys or values with a head for each head of the query: groups of these share one."""
    groups = query.shape[-3] // tensor.shape[-3]
    return tensor if groups == 1 else tensor.repeat_interleave(groups, -3)


@cache
def _multi_head_attention() -> Callable[..., Any]:
    """`multi_head_attention_forward` and what it calls, with `linear` and attention as they are here."""
    namespace = {**vars(torch.nn.functional), "linear": linear, "scaled_dot_product_attention": attention}
    for name in ("_in_projection_packed", "_in_projection", "multi_head_attention_forward"):
        known = getattr(torch.nn.functional, name)
        namespace[name] = types.FunctionType(known.__code__, namespace, name, known.__defaults__)
    return namespace["multi_head_attention_forward"]


ATTENTION_FORMS: dict[str, Callable[..., Any]] = {
    "torch.nn.functional.multi_head_attention_forward": lambda *args, **kwargs: _multi_head_attention()(*args, **kwargs)
}
"""Needed by every torch, for the biases of `linear`."""
