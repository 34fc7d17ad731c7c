"""What stands for written-out attention.

Its scores are scale * q @ k^T + bias, where bias is what the steps make of zeros. Fused kernels are off where all
keys of a query are masked: they give zeros for a row of -inf, whose softmax is NaN, and lose the sum of exponentials
beside a number like finfo.min, in the backward at the latest. Such rows of the bias are shifted up by their largest
entry, which a softmax does not see; -inf becomes NaN by that. Where the scores are lost in the mask, the row of the
query is made zero, and they are lost here too:

    masked by addition    gradients go to the query as if it were not zero; keys get none from such a row
    filled                no gradients, as for scores that were replaced
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from aotgrad.written_attention.match import Step

_LEAST = torch.finfo(torch.float32).min / 4
"""Lower numbers of a bias are raised to this: kernels multiply by log2(e), which must not overflow."""
_SHIFTED = -1e4
"""Rows of a bias that reach no higher are shifted."""
_LOST = -1e7
"""Rows of a bias that reach no higher swallow the scores, in float32."""


class Operands(NamedTuple):
    """What `scaled_dot_product_attention` is given."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    scale: float


def operands(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    steps: Sequence[tuple[Step, Any, tuple[Any, ...]]],
    masked_rows: bool,
) -> Operands:
    """Query, key and value (batch, heads, length, width), with what the steps do to the scores.

    steps: each with its number or tensor, and the leading sizes (batch or 1, heads or 1) in which that is seen.
    masked_rows: whether all keys of a query may be masked.
    """
    query, bias, filled, scale = _applied(query, steps)
    if bias is not None and masked_rows:
        if filled is not None:
            query = query.masked_fill(filled.all(-1, keepdim=True), 0.0)
        query, bias = _lifted(query, bias, any(step.kind == "add" for step, *_ in steps))
    mask = None if bias is None else _mask(bias, query.dtype, key.shape[2])
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    return Operands(query, key, value, mask, scale)


def _applied(
    query: torch.Tensor, steps: Sequence[tuple[Step, Any, tuple[Any, ...]]]
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, float]:
    """The query with scales that are tensors, the bias in float32, where something is filled in, the other scales."""
    bias: torch.Tensor | None = None
    filled: torch.Tensor | None = None
    scale = 1.0
    dtype = query.dtype
    is_finite = any(step.kind == "fill" and step.factor > -math.inf for step, *_ in steps)
    for step, x, lead in steps:
        if isinstance(x, torch.Tensor):
            x = x.reshape(*lead, *(1,) * (2 - x.dim()), *x.shape[-2:])  # (batch, heads, queries, keys), or 1 for each
        if step.kind == "fill":
            x = x.logical_not() if step.keep else x
            bias = torch.zeros_like(x, dtype=torch.float32) if bias is None else bias
            bias = torch.where(x, step.factor, bias)
            if is_finite:  # else such a row is NaN, whatever the query is
                filled = x if filled is None else filled.logical_or(x)
        elif step.kind == "add":
            x = x.float()
            x = x if step.factor == 1 else x * step.factor
            bias = x if bias is None else bias + x
        elif isinstance(x, torch.Tensor):
            query = (query * x if step.kind == "mul" else query / x).to(dtype)
            bias = bias if bias is None else bias * x if step.kind == "mul" else bias / x
        else:
            factor = x if step.kind == "mul" else 1 / x
            scale, bias = scale * factor, bias if bias is None else bias * factor
    return query, bias, filled, scale


def _lifted(query: torch.Tensor, bias: torch.Tensor, added: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and bias for rows that are masked as a whole; `added`: not only by filling."""
    top = bias.detach().amax(-1, keepdim=True)
    zero = torch.zeros_like(top)
    lifted = bias - torch.where(top <= _SHIFTED, top, zero)
    if not added:
        return query, lifted
    lost = torch.where(top <= _LOST, query.detach(), torch.zeros_like(query))
    return query - lost, lifted


def _mask(bias: torch.Tensor, dtype: torch.dtype, keys: int) -> torch.Tensor:
    """The bias as a fused kernel takes it, a number for each key."""
    mask = bias.clamp(min=max(_LEAST, torch.finfo(dtype).min)).to(dtype)
    if mask.shape[-1] != keys:
        mask = mask.expand(*mask.shape[:-1], keys)
    return mask.contiguous()
