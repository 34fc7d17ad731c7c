"""dtype promotion of ATen: the lattice, and the three categories (dimensioned, 0-dim, Python number).

Source: `aten/src/ATen/native/TypeProperties.cpp` (`result_type`, `update_result_type_state`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from absint.meta import Meta

_LATTICE_DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
)
_PROMOTED = {(left, right): torch.promote_types(left, right) for left in _LATTICE_DTYPES for right in _LATTICE_DTYPES}
# Accumulator and opmath dtype by operand dtype (at::opmath_type).
ACC_DTYPE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


def promote_types(left: torch.dtype, right: torch.dtype) -> torch.dtype:
    """The smallest dtype that both convert to (exotic dtypes ask torch itself)."""
    if left is right:
        return left
    found = _PROMOTED.get((left, right))
    return torch.promote_types(left, right) if found is None else found


def is_integral(dtype: torch.dtype) -> bool:
    """True for the integers and bool."""
    return not dtype.is_floating_point and not dtype.is_complex


def number_dtype(number: object) -> torch.dtype:
    """The dtype of a Python number wrapped in a 0-dim tensor."""
    match number:
        case bool():
            return torch.bool
        case int():
            return torch.int64
        case float():
            return torch.get_default_dtype()
        case complex():
            return torch.get_default_dtype().to_complex()
        case torch.SymInt():
            return torch.int64
        case torch.SymFloat():
            return torch.get_default_dtype()
        case torch.SymBool():
            return torch.bool
        case _:
            raise TypeError(f"{type(number).__name__} is no Python number")


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return higher.to_complex() if lower.is_complex else higher
    if higher is torch.bool or not is_integral(lower):
        return promote_types(higher, lower)
    return higher


def result_type(operands: Iterable[object]) -> torch.dtype:
    """The common dtype of tensors (`Meta`) and Python numbers.

    >>> from absint.meta import contiguous
    >>> result_type([contiguous((2,), torch.int32), 1.5])
    torch.float32
    """
    dimensioned = zero_dim = wrapped = None
    for operand in operands:
        if type(operand) is Meta:
            dtype = operand.dtype
            if operand.shape:
                dimensioned = dtype if dimensioned is None else promote_types(dimensioned, dtype)
            else:
                zero_dim = dtype if zero_dim is None else promote_types(zero_dim, dtype)
        else:
            dtype = number_dtype(operand)
            wrapped = dtype if wrapped is None else promote_types(wrapped, dtype)
    if zero_dim is None and wrapped is None and dimensioned is not None:
        return dimensioned
    found = _combine(dimensioned, _combine(zero_dim, wrapped))
    if found is None:
        raise TypeError("result_type needs at least one operand")
    return found


def float_dtype(dtype: torch.dtype) -> torch.dtype:
    """`dtype`, or the default float dtype where `dtype` is integral (int-to-float promotion)."""
    return torch.get_default_dtype() if is_integral(dtype) else dtype


def can_cast(source: torch.dtype, target: torch.dtype) -> bool:
    """May an in-place op whose result is `source` write into `target` (`at::canCast`)."""
    if source.is_complex and not target.is_complex:
        return False
    if source.is_floating_point and is_integral(target):
        return False
    return source is torch.bool or target is not torch.bool
