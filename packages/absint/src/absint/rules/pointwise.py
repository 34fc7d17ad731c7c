"""The type of a TensorIterator result: broadcast shape, common device, output strides."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from absint.errors import TypeRuleError
from absint.meta import CPU, Meta
from absint.promote import float_dtype, result_type
from absint.strides import contiguous_stride, elementwise_stride, is_contiguous, preserve_stride
from absint.symbolic.size import is_unbacked, surely_equal

Operand = Meta | int | float | bool | complex


def broadcast(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The broadcast of two shapes.

    >>> broadcast((3, 1), (2, 1, 4))
    (2, 3, 4)
    """
    if len(first) == len(second) and first == second:
        return first
    if len(first) < len(second):
        return broadcast(second, first)
    lead = len(first) - len(second)
    shape = list(first)
    for dim, size in enumerate(second, lead):
        if shape[dim] != size:
            if shape[dim] == 1:
                shape[dim] = size
            elif size != 1:
                shape[dim] = _only_fit(shape[dim], size, dim)
    return tuple(shape)


def _only_fit(first: int, second: int, dim: int) -> int:
    """The size of the result where data decides one of the two: eager takes nothing else."""
    if is_unbacked(first) != is_unbacked(second):
        return second if is_unbacked(first) else first
    raise TypeRuleError(f"sizes {first!r} and {second!r} must match in dimension {dim}")


def common_device(operands: Sequence[Operand]) -> torch.device:
    """The device of the result; 0-dim CPU tensors go along with any device."""
    device = None
    is_weak = True
    for operand in operands:
        if type(operand) is not Meta:
            continue
        if device is None or (is_weak and device.type == "cpu"):
            is_weak = not operand.shape
            device = operand.device
        elif operand.device != device and (operand.shape or operand.device.type != "cpu"):
            raise TypeRuleError(f"operands on {device} and on {operand.device}")
    if device is None:
        raise TypeRuleError("an op on several tensors needs one")
    return device


def cast(meta: Meta, dtype: torch.dtype) -> Meta:
    """The type of `x.to(dtype)`: strides kept where dense."""
    if meta.dtype is dtype:
        return meta
    return Meta(meta.shape, preserve_stride(meta.shape, meta.stride), dtype, meta.device)


def pointwise(operands: Sequence[Operand], common: torch.dtype | None = None, out: torch.dtype | None = None) -> Meta:
    """The type of an elementwise result.

    common: the dtype the operands are computed in (their promotion by default); on the CPU operands of
    another dtype are converted first, which makes them dense. out: the dtype of the result, `common` by
    default.
    """
    if common is None:
        common = result_type(operands)
    first = operands[0]
    if len(operands) == 1 and type(first) is Meta:
        stride, row_major = first.stride, contiguous_stride(first.shape)
        is_row_major = (
            stride is row_major or all(map(surely_equal, stride, row_major)) or is_contiguous(first.shape, stride)
        )
        if not is_row_major:
            converted = first.dtype is not common and first.device.type == "cpu"
            stride = preserve_stride(first.shape, stride) if converted else stride
            stride = elementwise_stride(first.shape, ((first.shape, stride),))
        return Meta(first.shape, row_major if is_row_major else stride, out or common, first.device)
    tensors = [operand for operand in operands if type(operand) is Meta]
    if not tensors:  # torch.div(7, 2)
        return Meta((), (), out or common, CPU)
    shape = tensors[0].shape
    for tensor in tensors[1:]:
        if len(tensor.shape) != len(shape) or tensor.shape != shape:
            shape = broadcast(shape, tensor.shape)
    strides = [
        (
            t.shape,
            preserve_stride(t.shape, t.stride)
            if t.dtype is not common and t.shape and t.device.type == "cpu"
            else t.stride,
        )
        for t in tensors
    ]
    if len(tensors) != len(operands):
        strides.append(((), ()))  # a Python number takes part as a 0-dim tensor
    device = tensors[0].device
    for tensor in tensors:
        if tensor.device != device:
            device = common_device(tensors)
            break
    return Meta(shape, elementwise_stride(shape, strides), out or common, device)


def float_pointwise(operands: Sequence[Operand]) -> Meta:
    """As `pointwise`, with integers promoted to the default float dtype."""
    return pointwise(operands, float_dtype(result_type(operands)))
