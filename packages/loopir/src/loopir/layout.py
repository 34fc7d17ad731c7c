"""Strides: what is dense, what overlaps, and a dense layout in the order of another."""

from __future__ import annotations

from stagewire.expr import Dim
from stagewire.sizes import estimate
from stagewire.types import TensorType, contiguous_stride


def stride_order(shape: tuple[Dim, ...], stride: tuple[Dim, ...]) -> tuple[int, ...]:
    """Dimensions from slowest to fastest, symbols being what they typically are."""
    return tuple(sorted(range(len(stride)), key=lambda d: (-estimate(stride[d]), d)))


def is_dense(type: TensorType) -> bool:
    """Whether the elements fill their memory without gap or overlap, in some order of the dimensions."""
    if 0 in type.shape:
        return True
    step: Dim = 1
    for d in reversed(stride_order(type.shape, type.stride)):
        if type.shape[d] == 1:
            continue
        if type.stride[d] != step:
            return False
        step = step * type.shape[d]
    return True


def repeated_dims(type: TensorType) -> tuple[int, ...]:
    """Dimensions of more than one element and stride 0."""
    return tuple(d for d, (n, s) in enumerate(zip(type.shape, type.stride, strict=True)) if s == 0 and n not in (0, 1))


def densified(type: TensorType) -> TensorType:
    """The same shape without gaps, dimensions in the same order of speed (repeated ones slowest)."""
    if is_dense(type):
        return TensorType(type.dtype, type.shape, type.stride, device=type.device)
    order = stride_order(type.shape, type.stride)
    repeated = repeated_dims(type)
    order = (*repeated, *(d for d in order if d not in repeated))
    return packed(type, type.shape, order)


def packed(type: TensorType, shape: tuple[Dim, ...], order: tuple[int, ...]) -> TensorType:
    """A type of another shape without gaps, its dimensions from slowest to fastest in `order`."""
    steps = contiguous_stride(tuple(shape[d] for d in order))
    stride: list[Dim] = [0] * len(order)
    for d, step in zip(order, steps, strict=True):
        stride[d] = step
    return TensorType(type.dtype, shape, tuple(stride), device=type.device)
