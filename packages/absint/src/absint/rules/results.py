"""Types of fresh results: row-major, in the layout or the memory format of an operand, or reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.meta import Meta, contiguous
from absint.rules.sizes import reduced_shape, wrap_dim, wrap_dims
from absint.strides import preserve_stride, stride_of_format, suggest_format

Shape = tuple[int, ...]


def fresh(like: Meta, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None) -> Meta:
    """A row-major tensor on the device of `like`, of its shape and dtype where none is given."""
    return contiguous(like.shape if shape is None else shape, dtype or like.dtype, like.device)


def empty_like(
    self: Meta, memory_format: torch.memory_format | None = None, dtype: torch.dtype | None = None, device: Any = None
) -> Meta:
    """`torch.empty_like` of `self`; no memory format means preserve_format."""
    if memory_format is None or memory_format is torch.preserve_format:
        stride = preserve_stride(self.shape, self.stride)
    else:
        stride = stride_of_format(self.shape, memory_format)
    if device is None:
        return Meta(self.shape, stride, dtype or self.dtype, self.device)
    found, own = torch.device(device), self.device
    found = numbered(found, own.index or 0 if own.type == found.type else 0)
    return Meta(self.shape, stride, dtype or self.dtype, found)


def numbered(device: torch.device, default: int = 0) -> torch.device:
    """A device that comes in several gets a number if it has none."""
    is_one = device.index is not None or device.type in ("cpu", "meta")
    return device if is_one else torch.device(device.type, default)


def suggested(self: Meta) -> Meta:
    """`at::empty_like(x, x.suggest_memory_format())`."""
    return Meta(self.shape, stride_of_format(self.shape, suggest_format(self)), self.dtype, self.device)


def formatted(like: Meta, shape: Shape, dtype: torch.dtype | None = None) -> Meta:
    """A tensor of `shape` in the memory format that `like` suggests, row-major where the ranks differ."""
    chosen = suggest_format(like) if len(shape) == like.ndim else torch.contiguous_format
    return Meta(shape, stride_of_format(shape, chosen), dtype or like.dtype, like.device)


def reduced(
    self: Meta, dim: int | Sequence[int] | None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Meta:
    """A reduction over `dim`; None and the empty list mean all dimensions."""
    return fresh(self, reduced_shape(self.shape, wrap_dims(dim, self.ndim), keepdim), dtype)


def resized(self: Meta, dim: int, size: int) -> Shape:
    """The shape with another size of one dimension."""
    dim = wrap_dim(dim, self.ndim)
    return (*self.shape[:dim], size, *self.shape[dim + 1 :])


def masked(output_mask: Sequence[bool], *grads: Meta | None) -> tuple[Meta | None, ...]:
    """Those of the gradients that are asked for."""
    return tuple([grad if asked else None for grad, asked in zip(grads, output_mask, strict=True)])
