"""torch's dtype promotion as pure data, for the calls whose result type does not show the dtype computed in.

Source: `c10/core/ScalarType.h` (`promoteTypes`) and `aten/src/ATen/native/TypeProperties.cpp` (`result_type`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from primops.prims.layouts import FLOATS, INTEGERS
from stagewire.expr import Expr

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_FLOAT_ORDER = ("float32", "float64")


@lru_cache(maxsize=256)
def promote(left: str, right: str) -> str:
    """The dtype of a result of two dtypes.

    >>> promote("bfloat16", "float16"), promote("uint8", "int8"), promote("int64", "bfloat16")
    ('float32', 'int16', 'bfloat16')
    """
    if left == right:
        return left
    if left in FLOATS and right in FLOATS:
        return "float64" if "float64" in (left, right) else "float32"
    if left in FLOATS:
        return left
    if right in FLOATS:
        return right
    if left == "bool":
        return right
    if right == "bool":
        return left
    if left == "uint8" or right == "uint8":
        other = right if left == "uint8" else left
        return "int16" if other == "int8" else other
    return left if _BITS[left] >= _BITS[right] else right


def _category(dtype: str) -> int:
    return 2 if dtype in FLOATS else 1 if dtype in INTEGERS else 0


def result_type(operands: Iterable[Any]) -> str:
    """The common dtype of tensors (anything with `.type`) and Python numbers: tensors with dimensions come before
    0-dim tensors, those before numbers, unless the lower one is of a higher category (bool, integer, float)."""
    dimensioned = zero = number = None
    for x in operands:
        if isinstance(x, bool):
            number = promote(number or "bool", "bool")
        elif isinstance(x, int | Expr):
            number = promote(number or "bool", "int64")
        elif isinstance(x, float):
            number = promote(number or "bool", "float32")
        elif x.type.shape == ():
            zero = promote(zero or x.type.dtype, x.type.dtype)
        else:
            dimensioned = promote(dimensioned or x.type.dtype, x.type.dtype)
    result = dimensioned
    for lower in (zero, number):
        if lower is not None and (result is None or _category(lower) > _category(result)):
            result = lower if result is None else promote(result, lower)
    if result is None:
        raise ValueError("no operands")
    return result
