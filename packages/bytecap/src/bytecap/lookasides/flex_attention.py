"""FlexAttention in torch's own functions: what torch.nn.attention.flex_attention.flex_attention computes.

`score_mod` and the block mask's `mask_mod` are functions of places, which torch.vmap maps over (batch, head, query,
key); what they compute is fused with the softmax. Without a `score_mod` it is torch's fused attention, with the mask
as a tensor. Blocks that a mask leaves out are computed, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bytecap.context_types import Tracer
from bytecap.objects.base import Value
from bytecap.objects.constant import Constant

_LN2 = math.log(2.0)


def flex_attention(
    self: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: tuple[Tensor, ...] = (),
    mask_mod_other_buffers: tuple[Tensor, ...] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """torch._higher_order_ops.flex_attention.FlexAttentionHOP.__call__

    query: (B, H, M, E). key, value: (1 or B, H / group, N, E) and (1 or B, H / group, N, V). Results: (B, H, M, V); the
    logarithms of the sums of exponentials, and the largest scores, both (B, H, M) and in units of log(2).
    """
    group = query.size(1) // key.size(1)
    key, value = (each.repeat_interleave(group, 1) if group > 1 else each for each in (key, value))
    precise = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(precise) @ key.to(precise).transpose(-2, -1) * scale
    places = [torch.arange(size, device=query.device) for size in scores.shape]
    scores = _over_places(score_mod, (0,), score_mod_other_buffers)(scores, *places, *score_mod_other_buffers)
    kept = _over_places(block_mask[-1], (), mask_mod_other_buffers)(*places, *mask_mod_other_buffers)
    scores = scores.to(precise).masked_fill(~kept, -math.inf)
    if _stands_for_none(score_mod, "_identity"):  # what is computed above is for the statistics
        mask = None if _stands_for_none(block_mask[-1], "noop_mask") else kept
        result = scaled_dot_product_attention(query, key, value, mask, scale=scale)
    else:
        result = torch.ops.aten._safe_softmax(scores, -1).to(query.dtype) @ value.to(query.dtype)
    return result, scores.logsumexp(-1) / _LN2, scores.amax(-1) / _LN2


def _stands_for_none(function: Any, name: str) -> bool:
    """Whether it is the function that torch takes where the program gives none."""
    return getattr(function, "__module__", "") == "torch.nn.attention.flex_attention" and function.__name__ == name


def _over_places(function: Callable[..., Tensor], first: tuple[int, ...], captured: tuple[Tensor, ...]) -> Any:
    """A function of one place, of as many as there are of each kind; results are (B, H, M, N)."""
    for axis in (3, 2, 1, 0):
        places = [None, None, None, None]
        places[axis] = 0  # type: ignore[call-overload]
        function = torch.vmap(function, (*first, *places, *(None for _ in captured)))
    return lambda *args: index_by_tensors(function, args)


def index_by_tensors(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call a function whose subscripts by tensors are `aten.index`; the evaluator knows the meaning."""
    raise AssertionError("called in captured code only")


def _index_by_tensors(tracer: Tracer, function: Value, args: Value) -> Value:
    tracer.index_modes.append(Constant(None))
    try:
        return function.call(tracer, args.values(tracer), {})  # type: ignore[attr-defined]
    finally:
        tracer.index_modes.pop()


FLEX_ATTENTION: dict[Any, Callable[..., Value]] = {index_by_tensors: _index_by_tensors}
