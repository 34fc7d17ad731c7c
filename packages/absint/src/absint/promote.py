"""dtype promotion of ATen: the lattice, and the three categories (dimensioned, 0-dim, Python number).

Source: `aten/src/ATen/native/TypeProperties.cpp` (`result_type`, `update_result_type_state`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import torch

from absint.meta import Meta

# Accumulator and opmath dtype by operand dtype (at::opmath_type).
ACC_DTYPE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}

promote_types: Callable[[torch.dtype, torch.dtype], torch.dtype] = cache(torch.promote_types)
"""The smallest dtype that both convert to."""


def is_integral(dtype: torch.dtype) -> bool:
    """True for the integers and bool."""
    return not dtype.is_floating_point and not dtype.is_complex


def number_dtype(number: object) -> torch.dtype:
    """The dtype of a Python number wrapped in a 0-dim tensor."""
    if isinstance(number, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(number, (int, torch.SymInt)):
        return torch.int64
    if isinstance(number, (float, torch.SymFloat)):
        return torch.get_default_dtype()
    if isinstance(number, complex):
        return torch.get_default_dtype().to_complex()
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
