"""Writes through a boolean mask whose gradient has a shape that data decides, in a form where it has not.

x[mask] = row      the gradient of row is that of x[mask], summed: as many rows as the mask has true elements
x.copy_(where(mask, row, x))      the same values, and a gradient of static shape
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["set_item"]


def set_item(target: torch.Tensor, index: Any, value: Any) -> None:
    """`target[index] = value`; as a selection where a mask alone chooses, and one value with a gradient is for all."""
    mask = _mask(target, index)
    if mask is None or not isinstance(value, torch.Tensor) or not value.requires_grad:
        torch.Tensor.__setitem__(target, index, value)
        return
    kept = target.dim() - mask.dim()
    if value.dim() > kept + 1 or (value.dim() == kept + 1 and value.shape[0] != 1):
        torch.Tensor.__setitem__(target, index, value)
        return
    row = value.reshape(value.shape[1:]) if value.dim() == kept + 1 else value
    row = row.to(device=target.device, dtype=target.dtype)
    chosen = mask.to(target.device).reshape(*mask.shape, *[1] * kept)
    target.copy_(torch.where(chosen, row.expand(target.shape[mask.dim() :]), target))


def _mask(target: torch.Tensor, index: Any) -> torch.Tensor | None:
    """The mask over the first dimensions, if the index is that alone."""
    if isinstance(index, tuple) and len(index) == 1:
        (index,) = index
    if not isinstance(index, torch.Tensor) or index.dtype is not torch.bool or index.dim() == 0:
        return None
    return index if index.shape == target.shape[: index.dim()] else None
