"""Dimension arithmetic of the rules (wrapping, canonical lists, sizes of a view), and the types of fresh results:
row-major, in the layout or the memory format of an operand, or reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.errors import DimensionError, TypeRuleError
from absint.meta import Meta, contiguous
from absint.strides import preserve_stride, stride_of_format, suggest_format
from absint.symbolic.size import is_unbacked
from stagewire.types import numel

Shape = tuple[int, ...]


def wrap_dim(dim: int, rank: int) -> int:
    """`dim` counted from the front; rank 0 counts as 1.

    >>> wrap_dim(-1, 3)
    2
    """
    limit = rank if rank > 0 else 1
    if not -limit <= dim < limit:
        raise DimensionError(f"dimension {dim} is out of range: {-limit} to {limit - 1}")
    return dim + limit if dim < 0 else dim


def dim_checked(self: Meta, *dims: int) -> Meta:
    """`self`, of which these are dimensions."""
    for dim in dims:
        wrap_dim(dim, self.ndim)
    return self


def wrap_dims(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Canonical dimensions of a reduction; None and the empty list mean all of them."""
    if isinstance(dims, int):
        return (wrap_dim(dims, rank),)
    if dims is None or len(dims) == 0:
        return tuple(range(rank))
    wrapped = tuple([wrap_dim(dim, rank) for dim in dims])
    if len(set(wrapped)) != len(wrapped):
        raise TypeRuleError(f"dim appears multiple times in the list of dims {list(dims)}")
    return wrapped


def reduced_shape(shape: tuple[int, ...], dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    """The shape after reducing over `dims`."""
    if keepdim:
        return tuple([1 if dim in dims else size for dim, size in enumerate(shape)])
    return tuple([size for dim, size in enumerate(shape) if dim not in dims])


def infer_size(sizes: Sequence[int], count: int) -> tuple[int, ...]:
    """`sizes` with its one -1 replaced so that `count` elements fit.

    >>> infer_size((2, -1), 6)
    (2, 3)
    """
    sizes = tuple(sizes)
    holes = [position for position, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if len(holes) > 1:
        raise TypeRuleError("only one dimension can be inferred")
    if any(isinstance(size, int) and size < -1 for size in sizes):
        raise TypeRuleError(f"invalid shape dimension in {list(sizes)}")
    if not holes:
        if numel(sizes) != count and is_unbacked(count) == is_unbacked(numel(sizes)):
            raise TypeRuleError(f"shape '{list(sizes)}' is invalid for input of size {count!r}")
        return sizes
    known = numel([size for position, size in enumerate(sizes) if position != holes[0]])
    if known == 0:
        raise TypeRuleError(f"the size -1 in {list(sizes)} may be any for a tensor without elements")
    if not is_unbacked(count) and count % known != 0:
        raise TypeRuleError(f"shape '{list(sizes)}' is invalid for input of size {count!r}")
    return (*sizes[: holes[0]], count // known, *sizes[holes[0] + 1 :])


def expand_stride(self: Meta, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of `self` expanded to `shape` (already without -1).

    A new leading dimension gets stride 0, or the stride a contiguous one would have where its size is 1;
    all strides of an expanded 0-dim tensor are 0.
    """
    lead = len(shape) - self.ndim
    strides = [0] * len(shape)
    if not self.shape:
        return tuple(strides)
    for dim in range(len(shape) - 1, -1, -1):
        own = dim - lead
        if own >= 0:
            size, step = self.shape[own], self.stride[own]
        else:
            size = 1
            step = shape[dim + 1] * strides[dim + 1]
        if size != shape[dim]:
            if size == 1:
                step = 0
            elif is_unbacked(size) == is_unbacked(shape[dim]):  # of one unbacked: they are equal, or eager refuses
                raise TypeRuleError(f"{list(self.shape)} does not expand to {list(shape)}: sizes must match")
        strides[dim] = step
    return tuple(strides)


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a tensor of `shape` expands to `target`."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size in (wanted, 1) for size, wanted in pairs)


def refuse_negative(size: Sequence[int]) -> None:
    """No tensor has a dimension of fewer than no elements; what a symbol is says its range."""
    if any(isinstance(n, int) and n < 0 for n in size):
        raise TypeRuleError(f"Trying to create tensor with negative dimension: {list(size)}")


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
