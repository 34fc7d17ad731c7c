"""`scaled_dot_product_attention` on abstract tensors; what follows is of those of a CUDA device.

Which kernel C++ takes depends on the device and its library. Here the CPU's fused op stands for all of them: its
gradient saves what theirs save. A tracer puts a kernel of the device in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from absint.forms.attention import attention as on_cpu
from absint.tensor import AbstractTensor

__all__ = ["attention"]

aten = torch.ops.aten
Chooser = Callable[[Any, Any, Any, Any, float, bool, float | None], bool]
"""(query, key, value, mask, dropout, is_causal, scale): whether a fused kernel takes them."""


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    is_fused: Chooser | None = None,
    hidden: Callable[..., float] | None = None,
) -> Any:
    """As `torch.nn.functional.scaled_dot_product_attention`; dropout is written out where `is_fused` says no.

    hidden: what is added to the scores that a boolean mask hides, by the same arguments as `is_fused` (default: -inf).
    """
    tensors = [tensor for tensor in (query, key, value, attn_mask) if tensor is not None]
    if not all(isinstance(tensor, AbstractTensor) and tensor.is_cuda for tensor in tensors):
        return on_cpu(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    query, key, value, mask = (_autocast(tensor) for tensor in (query, key, value, attn_mask))
    if mask is not None and mask.dtype == torch.bool:
        shown, mask = mask, torch.zeros_like(mask, dtype=query.dtype)
        low = -math.inf if hidden is None else hidden(query, key, value, mask, dropout_p, is_causal, scale)
        mask = mask.masked_fill(~shown, low)
    is_open = _fits(query, key, value, enable_gqa) and not (mask is not None and mask.requires_grad)
    choice = (query, key, value, mask, dropout_p, is_causal, scale)
    if is_open and (not dropout_p or is_fused is None or is_fused(*choice)):
        op = aten._scaled_dot_product_flash_attention_for_cpu
        return op(query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale)[0]
    written_out = aten._scaled_dot_product_attention_math
    options = {"scale": scale, "enable_gqa": enable_gqa}
    return written_out(query, key, value, mask, dropout_p, is_causal, **options)[0]


def _fits(query: Any, key: Any, value: Any, enable_gqa: bool) -> bool:
    """Whether the fused op takes the operands: nothing to broadcast but whole groups of heads."""
    if any(tensor.dim() != 4 for tensor in (query, key, value)) or query.shape[-1] != key.shape[-1]:
        return False
    if key.shape[:3] != value.shape[:3] or query.shape[0] != key.shape[0]:
        return False
    return query.shape[1] == key.shape[1] or (enable_gqa and query.shape[1] % key.shape[1] == 0)


def _autocast(tensor: Any) -> Any:
    """What autocast for CUDA makes of an operand."""
    if tensor is None or not torch.is_autocast_enabled("cuda"):
        return tensor
    is_cast = tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(torch.get_autocast_dtype("cuda")) if is_cast else tensor
