"""Writes through a boolean mask whose gradient has a shape that data decides, in a form where it has not.

x[mask] = row      the gradient of row is that of x[mask], summed: as many rows as the mask has true elements
x.copy_(where(mask, row, x))      the same values, and a gradient of static shape
"""

from __future__ import annotations

from typing import Any

import torch

from absint.forms import set_item as write_item


def set_item(target: torch.Tensor, index: Any, value: Any) -> None:
    """`target[index] = value`; as a selection where a mask alone chooses, and one value with a gradient is for all."""
    chosen = _selected(target, index, value)
    if chosen is None:
        write_item(target, index, value)
    else:
        target.copy_(chosen)


def index_put_(
    target: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:  # fmt: skip
    """`target.index_put_(indices, values)`, likewise."""
    added = None
    if values.dtype is target.dtype:  # torch refuses others
        added = _selected(target, tuple(indices), values, target if accumulate else None)
    if added is None:
        return torch.Tensor.index_put_(target, indices, values, accumulate)
    return target.copy_(added)


def index_put(
    target: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:  # fmt: skip
    """`target.index_put(indices, values)`, likewise."""
    return index_put_(target.clone(), indices, values, accumulate)


def _selected(target: torch.Tensor, index: Any, value: Any, base: torch.Tensor | None = None) -> torch.Tensor | None:
    """What `target` holds afterwards: `value` (added to `base`) where the mask holds; None if it is another case."""
    mask = _mask(target, index)
    if mask is None or not isinstance(value, torch.Tensor) or not value.requires_grad:
        return None
    kept = target.dim() - mask.dim()
    if value.dim() > kept + 1 or (value.dim() == kept + 1 and value.shape[0] != 1):
        return None
    row = value.reshape(value.shape[1:]) if value.dim() == kept + 1 else value
    row = row.to(device=target.device, dtype=target.dtype).expand(target.shape[mask.dim() :])
    chosen = mask.to(target.device).reshape(*mask.shape, *[1] * kept)
    return torch.where(chosen, row if base is None else base + row, target)


def _mask(target: torch.Tensor, index: Any) -> torch.Tensor | None:
    """The mask over the first dimensions, if the index is that alone."""
    if isinstance(index, tuple) and len(index) == 1:
        (index,) = index
    if not isinstance(index, torch.Tensor) or index.dtype is not torch.bool or index.dim() == 0:
        return None
    return index if index.shape == target.shape[: index.dim()] else None
