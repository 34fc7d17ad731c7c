"""Stride rules of ATen: contiguity predicates, TensorIterator's output strides, strides of a view.

Sources: `c10/core/Contiguity.h`, `c10/core/MemoryFormat.h`, `aten/src/ATen/TensorIterator.cpp`
(`reorder_dimensions`, `compute_fast_setup_type`), `aten/src/ATen/TensorUtils.cpp`
(`computeStride`), `aten/src/ATen/ExpandUtils.cpp` (`infer_dense_strides`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

import torch

from absint.symbolic.shape_env import ShapeEnv
from absint.symbolic.size import is_unbacked, layout_key, surely_equal

if TYPE_CHECKING:
    from absint.meta import Meta

Shape = tuple[int, ...]
_CHANNELS_LAST_ORDER = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}
_CHANNELS_LAST_FORMAT = {4: torch.channels_last, 5: torch.channels_last_3d}


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of `shape`; a dimension of size zero counts as one, as in `at::empty`.

    >>> contiguous_stride((2, 3, 4))
    (12, 4, 1)
    """
    for size in shape:
        if type(size) is not int:
            return _open_stride(size.node.env, shape)
    return _product_stride(shape)


def _product_stride(shape: Sequence[int]) -> tuple[int, ...]:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        if size != 0:
            step = step * size
    strides.reverse()
    return tuple(strides)


def _open_stride(env: ShapeEnv, shape: Sequence[int]) -> tuple[int, ...]:
    """The same of symbolic sizes: most rules ask for it, and of few shapes."""
    key = layout_key(shape)
    known = env.row_major.get(key)
    if known is None:
        known = env.row_major[key] = tuple(shape), _product_stride(shape)
    return known[1]


def is_contiguous(shape: Shape, stride: Shape) -> bool:
    """Row-major without gaps; strides of size-1 dimensions do not matter, empty is contiguous."""
    expected = 1
    verdict = True
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size == 0:
            return True
        verdict = verdict and _continues(size, step, expected)
        expected = expected * size
    return verdict


def is_channels_last(shape: Shape, stride: Shape) -> bool:
    """Channels-last without gaps (4 or 5 dimensions, else False)."""
    order = _CHANNELS_LAST_ORDER.get(len(shape))
    if order is None:
        return False
    expected = 1
    for dim in order:
        if not _continues(shape[dim], stride[dim], expected):
            return False
        expected = expected * shape[dim]
    return True


def is_dense(shape: Shape, stride: Shape) -> bool:
    """Non-overlapping and dense: some permutation of the dimensions is contiguous."""
    if is_contiguous(shape, stride):
        return True
    pairs = [(step, size) for size, step in zip(shape, stride, strict=True) if not size < 2]
    steps = sorted(pairs, key=itemgetter(0))  # by the steps alone: symbolic sizes are not compared without need
    expected = 1
    for step, size in steps:
        if step != expected:
            return False
        expected = expected * size
    return True


def packed_stride(shape: Sequence[int], order: Iterable[int]) -> Shape:
    """Strides without gaps of dimensions in this order, the fastest first."""
    strides = [0] * len(shape)
    step = 1
    for dim in order:
        strides[dim] = step
        step = step * shape[dim]
    return tuple(strides)


def channels_last_stride(shape: Shape) -> Shape:
    """Strides of a fresh channels-last tensor of 3 to 5 dimensions (channel first of the last 3-5)."""
    return packed_stride(shape, {3: (0, 2, 1), **_CHANNELS_LAST_ORDER}[len(shape)])


def looks_channels_last(shape: Shape, stride: Shape) -> bool:
    """Whether the strides order the dimensions as channels-last does (gaps allowed)."""
    order = _CHANNELS_LAST_ORDER.get(len(shape))
    if order is None or stride[1] == 0:
        return False
    least = 0
    for dim in order:
        if shape[dim] == 0 or stride[dim] < least:
            return False
        if dim == 0 and least == stride[1]:
            return False
        least = stride[dim]
        if shape[dim] > 1:
            least = least * shape[dim]
    return True


def suggest_format(meta: Meta) -> torch.memory_format:
    """`Tensor::suggest_memory_format`: channels-last if the strides look so, else contiguous."""
    if meta.stride is contiguous_stride(meta.shape):  # (kept of symbolic sizes)
        return torch.contiguous_format
    if looks_channels_last(meta.shape, meta.stride):
        return _CHANNELS_LAST_FORMAT[len(meta.shape)]
    return torch.contiguous_format


def stride_of_format(shape: Shape, memory_format: torch.memory_format | None) -> Shape:
    """Strides of a fresh tensor in a memory format (None means contiguous)."""
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        wanted = 4 if memory_format is torch.channels_last else 5
        if len(shape) != wanted:
            raise RuntimeError(f"required rank {wanted} tensor to use {memory_format} format")
        return channels_last_stride(shape)
    return contiguous_stride(shape)


def _memory_order(shape: Sequence[int], layouts: Sequence[Sequence[int]]) -> list[int]:
    """TensorIterator's insertion sort: dimensions from the fastest to the slowest, by the first of the layouts' strides
    that tells two of them apart."""

    def should_swap(first: int, second: int) -> int:
        for steps in layouts:
            near, far = steps[first], steps[second]
            if near == 0 or far == 0:
                continue
            if near < far:
                return -1
            if near > far:
                return 1
            if shape[first] > shape[second]:
                return 1
        return 0

    perm = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(shape)):
        position = i
        for other in range(i - 1, -1, -1):
            verdict = should_swap(perm[other], perm[position])
            if verdict > 0:
                perm[other], perm[position] = perm[position], perm[other]
                position = other
            elif verdict < 0:
                break
    return perm


def dense_like_stride(shape: Shape, stride: Shape) -> Shape:
    """Dense strides in the memory order of `stride` (`infer_dense_strides`)."""
    if len(shape) <= 1:
        return (1,) * len(shape)

    return packed_stride([size if size > 1 else 1 for size in shape], _memory_order(shape, [stride]))


def preserve_stride(shape: Shape, stride: Shape) -> Shape:
    """Strides of `empty_like(x, memory_format=torch.preserve_format)`."""
    return stride if is_dense(shape, stride) else dense_like_stride(shape, stride)


def elementwise_stride(shape: Shape, operands: Sequence[tuple[Shape, Shape]]) -> Shape:
    """Strides TensorIterator gives to a fresh output of broadcast `shape`.

    `operands` holds (shape, stride) of the tensor inputs, 0-dim ones included, in order.
    """
    first_shape, first = operands[0]
    is_whole = len(operands) > 1 and len(first_shape) == len(shape) and first_shape == shape
    if is_whole and 0 not in shape and 1 not in shape and first == (row_major := contiguous_stride(shape)):
        return row_major  # the first operand alone decides the order of dimensions that are larger than one
    if all(len(op_shape) == len(shape) and op_shape == shape for op_shape, _ in operands):
        if all(is_contiguous(*op) for op in operands):
            return contiguous_stride(shape)
        if len(shape) == 4 and all(is_channels_last(*op) for op in operands):  # TensorIterator knows no volumes
            return channels_last_stride(shape)
        if all(op[1] == first for op in operands) and is_dense(shape, first):
            return first
    return _ordered_stride(shape, operands)


def _ordered_stride(shape: Shape, operands: Sequence[tuple[Shape, Shape]]) -> Shape:
    rank = len(shape)
    if rank <= 1:
        return contiguous_stride(shape)
    perm = _memory_order(shape, [_broadcast_stride(shape, *op) for op in operands])
    if perm == list(range(rank - 1, -1, -1)):
        return contiguous_stride(shape)
    return packed_stride(shape, perm)


def _broadcast_stride(shape: Shape, op_shape: Shape, op_stride: Shape) -> list[int]:
    lead = len(shape) - len(op_shape)
    aligned = [0] * len(shape)
    for dim, (size, step) in enumerate(zip(op_shape, op_stride, strict=True)):
        aligned[lead + dim] = 0 if size == 1 and shape[lead + dim] != 1 else step
    return aligned


def _continues(size: int, step: int, expected: int) -> bool:
    """Whether a dimension lies as it must to be one with the next.

    In this order: where the stride is surely as expected, nobody has to know whether the size is 1.
    """
    if type(step) is int and type(expected) is int:
        return step == expected or size == 1
    return surely_equal(step, expected) or size == 1 or step == expected


def view_stride(old_shape: Shape, old_stride: Shape, new_shape: Shape) -> Shape | None:
    """Strides of `x.view(new_shape)`, or None where no strides can express it."""
    if not old_shape:
        return (1,) * len(new_shape)
    row_major = contiguous_stride(old_shape)
    if old_stride is row_major or all(map(surely_equal, old_stride, row_major)):
        return contiguous_stride(new_shape)
    if any(size == 0 for size in old_shape):
        return old_stride if old_shape == new_shape else contiguous_stride(new_shape)
    if len(old_shape) == 1 and is_unbacked(old_shape[0]):  # it fits, or eager refuses
        return tuple([step * old_stride[0] for step in contiguous_stride(new_shape)])
    strides = [0] * len(new_shape)
    view_dim = len(new_shape) - 1
    base_stride = old_stride[-1]
    tensor_numel = 1
    view_numel = 1
    for dim in range(len(old_shape) - 1, -1, -1):
        tensor_numel = tensor_numel * old_shape[dim]
        if dim != 0 and _continues(old_shape[dim - 1], old_stride[dim - 1], tensor_numel * base_stride):
            continue
        while view_dim >= 0 and (view_numel < tensor_numel or new_shape[view_dim] == 1):
            strides[view_dim] = view_numel * base_stride
            view_numel = view_numel * new_shape[view_dim]
            view_dim -= 1
        if view_numel != tensor_numel:
            return None
        if dim > 0:
            base_stride = old_stride[dim - 1]
            tensor_numel = 1
            view_numel = 1
    return None if view_dim != -1 else tuple(strides)
