"""What the call that stands for written-out attention computes.

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
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["written_attention"]

Attend = Callable[..., torch.Tensor]
_LEAST = torch.finfo(torch.float32).min / 4
"""Lower numbers of a bias are raised to this: kernels multiply by log2(e), which must not overflow."""
_SHIFTED = -1e4
"""Rows of a bias that reach no higher are shifted."""
_LOST = -1e7
"""Rows of a bias that reach no higher swallow the scores, in float32."""


def written_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    steps: tuple[tuple[Any, ...], ...],
    *,
    scores: str,
    values: str,
    heads: tuple[int, int],
    lead: tuple[int, ...],
    order: tuple[int, ...],
    dtype: torch.dtype,
    dropout: float,
    is_causal: bool,
    masked_rows: bool,
    attend: Attend = torch.nn.functional.scaled_dot_product_attention,
) -> torch.Tensor:
    """The output of attention, in memory of the order of dimensions `order`, biggest stride first.

    steps: "mul", "div", "add", "fill" of `steps.Step`, each with the leading sizes in which its tensor is seen beside
    `heads`. scores, values: the two products as einsum writes them. heads: (batch, heads) of the fused kernel. lead:
    leading sizes of the weights. masked_rows: whether all keys of a query may be masked.
    """
    of_scores, of_values = _labels(scores), _labels(values)
    *batch, row, _ = of_scores[2]
    summed = next(label for label in of_scores[0] if label not in of_scores[2])
    width = next(label for label in of_values[1] if label not in of_values[0])
    query = _laid_out(query.to(dtype), of_scores[0], (*batch, row, summed), heads)
    key = _laid_out(key.to(dtype), of_scores[1], (*batch, of_scores[2][-1], summed), heads)
    value = _laid_out(value.to(dtype), of_values[1], (*of_values[0][:-2], of_values[0][-1], width), heads)
    query, bias, filled, scale = _applied(query, steps)
    if bias is not None and masked_rows:
        if filled is not None:
            query = query.masked_fill(filled.all(-1, keepdim=True), 0.0)
        query, bias = _lifted(query, bias, any(kind == "add" for kind, *_ in steps))
    mask = None if bias is None else _mask(bias, dtype, key.shape[2])
    out = attend(query, key, value, mask, dropout, is_causal, scale=scale)
    out = out.reshape(*lead, *out.shape[2:])
    produced = (*of_values[0][:-1], width)
    out = out.permute([produced.index(label) for label in of_values[2]])
    return out.permute(order).contiguous().permute([order.index(dim) for dim in range(len(order))])


def _labels(equation: str) -> tuple[str, str, str]:
    operands, _, result = equation.partition("->")
    first, _, second = operands.partition(",")
    return first, second, result


def _laid_out(tensor: torch.Tensor, labels: str, wanted: tuple[str, ...], heads: tuple[int, int]) -> torch.Tensor:
    """(batch, heads, length, width), dense in the width."""
    turned = tensor.permute([labels.index(label) for label in wanted])
    found = turned.reshape(*heads, *turned.shape[-2:])
    return found if found.stride(-1) == 1 else found.contiguous()


def _applied(
    query: torch.Tensor, steps: tuple[tuple[Any, ...], ...]
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, float]:
    """The query with scales that are tensors, the bias in float32, where something is filled in, the other scales."""
    bias: torch.Tensor | None = None
    filled: torch.Tensor | None = None
    scale = 1.0
    dtype = query.dtype
    for kind, x, *rest in steps:
        if kind == "fill":
            x = _beside_heads(x, rest[2])
            x = x.logical_not() if rest[1] else x
            bias = torch.zeros_like(x, dtype=torch.float32) if bias is None else bias
            bias = torch.where(x, rest[0], bias)
            if rest[0] > -math.inf:  # else such a row is NaN, whatever the query is
                filled = x if filled is None else filled.logical_or(x)
        elif kind == "add":
            x = _beside_heads(x, rest[1]).float()
            x = x if rest[0] == 1 else x * rest[0]
            bias = x if bias is None else bias + x
        elif isinstance(x, torch.Tensor):
            x = _beside_heads(x, rest[0])
            query = (query * x if kind == "mul" else query / x).to(dtype)
            bias = bias if bias is None else bias * x if kind == "mul" else bias / x
        else:
            factor = x if kind == "mul" else 1 / x
            scale, bias = scale * factor, bias if bias is None else bias * factor
    return query, bias, filled, scale


def _beside_heads(x: torch.Tensor, lead: tuple[int, int]) -> torch.Tensor:
    """(batch or 1, heads or 1, queries or 1, keys or 1)."""
    rows = (1,) * (2 - x.dim()) + tuple(x.shape[-2:])
    return x.reshape(*lead, *rows)


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
