"""Meaning of the loop ops and reductions on numpy arrays. Needs numpy (extra `testing`).

bfloat16 is held in float32 arrays whose values are bfloat16 values; `rounded` restores that after each operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from loopir.errors import NotInterpretable
from stagewire.literals import neutral, number
from stagewire.philox import draw, in_unit_interval
from stagewire.stage import Table

Array = np.ndarray
HELD: dict[str, type] = {
    "float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": np.float32, "bool": np.bool_,
    "int64": np.int64, "int32": np.int32, "int16": np.int16, "int8": np.int8, "uint8": np.uint8,
    "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64, "complex64": np.complex64,
    "complex128": np.complex128,
}  # fmt: skip


def held_type(dtype: str) -> type:
    """The numpy type that holds values of `dtype`."""
    if dtype not in HELD:
        raise NotInterpretable(f"numpy holds no {dtype}")
    return HELD[dtype]


def rounded(array: Array, dtype: str) -> Array:
    """The array as values of `dtype` (float to int truncates)."""
    with np.errstate(all="ignore"):
        if dtype == "bfloat16":
            return to_bfloat16(np.asarray(array, np.float32))
        return np.asarray(array).astype(held_type(dtype))


def to_bfloat16(array: Array) -> Array:
    """float32 values rounded to the nearest bfloat16, ties to even.

    >>> float(to_bfloat16(np.float32(0.1)))
    0.10009765625
    """
    bits = np.asarray(array, np.float32).view(np.uint32).astype(np.uint64)
    up = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    result = np.where(np.isnan(array), np.uint64(0x7FC00000), up).astype(np.uint32).view(np.float32)
    return result.reshape(np.shape(array))


def apply(op: str, operands: list[Array], dtype: str) -> Array:
    """op(operands) for arrays of one dtype; `dtype` names it (for half precision, which computes in float32)."""
    function = OPEN.get(op)
    if function is None:
        raise NotInterpretable(f"no numpy meaning for {op}")
    if dtype in ("float16", "bfloat16"):
        operands = [a.astype(np.float32) if a.dtype == np.float16 else a for a in operands]
    with np.errstate(all="ignore"):
        return function(*operands)


def _by_element(function: Callable[[float], float]) -> Callable[[Array], Array]:
    def over(a: Array) -> Array:
        flat = [function(float(x)) for x in np.ravel(a)]
        return np.array(flat, dtype=a.dtype).reshape(np.shape(a))

    return over


def _lgamma(x: float) -> float:
    if math.isnan(x) or math.isinf(x):
        return abs(x)
    return math.inf if x <= 0 and x == math.floor(x) else math.lgamma(x)


def _digamma(x: float) -> float:
    """Reflection, recurrence up to 6, asymptotic series (Abramowitz and Stegun 6.3)."""
    if math.isnan(x) or x == -math.inf:
        return math.nan
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        return math.nan if x == math.floor(x) else _digamma(1 - x) - math.pi / math.tan(math.pi * x)
    result = 0.0
    while x < 10:
        result -= 1 / x
        x += 1
    f = 1 / (x * x)
    series = f * (1 / 12 - f * (1 / 120 - f * (1 / 252 - f * (1 / 240 - f * (1 / 132)))))
    return result + math.log(x) - 0.5 / x - series


def _erfinv(x: float) -> float:
    if math.isnan(x) or abs(x) > 1:
        return math.nan
    if abs(x) == 1:
        return math.copysign(math.inf, x)
    return NormalDist().inv_cdf((x + 1) / 2) / math.sqrt(2)


def _pow(a: Array, b: Array) -> Array:
    if np.issubdtype(a.dtype, np.integer):
        positive = np.power(a, np.maximum(b, 0))
        negative = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0)).astype(a.dtype)
        return np.where(b < 0, negative, positive)
    return np.power(a, b)


def _shift(left: bool) -> Callable[[Array, Array], Array]:
    def shift(a: Array, b: Array) -> Array:
        bits = a.dtype.itemsize * 8
        valid = (b >= 0) & (b < bits)
        amount = np.where(valid, b, 0).astype(a.dtype)
        outside = np.zeros_like(a) if left else np.where(a < 0, -1, 0).astype(a.dtype)
        return np.where(valid, a << amount if left else a >> amount, outside)

    return shift


def _trunc_div(a: Array, b: Array) -> Array:
    if np.issubdtype(a.dtype, np.integer):
        quotient = np.floor_divide(a, b)
        return np.where((quotient < 0) & (quotient * b != a), quotient + 1, quotient).astype(a.dtype)
    return np.trunc(a / b)


def _check_index(a: Array, b: Array) -> Array:
    if np.any((a < 0) | (a >= b)):
        raise IndexError(f"index out of range for size {int(np.max(b))}")
    return a


def _check_range(a: Array, b: Array, c: Array) -> Array:
    if not np.all((a >= b) & (a <= c)):
        raise RuntimeError("a value is out of the range that the operator takes")
    return a


def _wrap_index(a: Array, b: Array) -> Array:
    return _check_index(np.where(a < 0, a + b, a), b)


def uniform(seed: Array, offset: Array, element: Array, threads: Array, width: Array) -> Array:
    """The loop op `philox`: float32 in (0, 1], one for each element; the other operands are one number each."""
    (key,), (start,), (t,), (w,) = (np.unique(x).tolist() for x in (seed, offset, threads, width))
    if w not in (1, 2, 4, 8, 16) or start % 4:
        raise NotInterpretable(f"philox of width {w} from offset {start}")
    words, number = draw(key, start, np.asarray(element, np.int64), t, w)
    return in_unit_interval(np.choose(number, words).astype(np.float32))


TABLE: dict[str, Callable[..., Array]] = {
    "neg": np.negative, "abs": np.abs, "sign": lambda a: ((a > 0).astype(a.dtype) - (a < 0).astype(a.dtype)),
    "ceil": np.ceil, "floor": np.floor, "round": np.rint, "trunc": np.trunc,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": lambda a: (1 / np.sqrt(a)).astype(a.dtype),
    "reciprocal": lambda a: (1 / a).astype(a.dtype), "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "erf": _by_element(math.erf), "erfc": _by_element(math.erfc),
    "erfinv": _by_element(_erfinv), "lgamma": _by_element(_lgamma), "digamma": _by_element(_digamma),
    "sigmoid": lambda a: (1 / (1 + np.exp(-a))).astype(a.dtype), "bitwise_not": np.invert,
    "isnan": np.isnan, "isinf": np.isinf, "signbit": np.signbit, "logical_not": np.logical_not,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "floor_div": np.floor_divide,
    "trunc_div": _trunc_div, "remainder": np.remainder, "fmod": np.fmod, "pow": _pow, "atan2": np.arctan2,
    "hypot": np.hypot, "copysign": np.copysign, "nextafter": np.nextafter, "maximum": np.maximum,
    "minimum": np.minimum, "fmax": np.fmax, "fmin": np.fmin, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "logical_xor": np.logical_xor, "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor, "shift_left": _shift(True),
    "shift_right": _shift(False), "where": np.where, "fma": lambda a, b, c: a * b + c,
    "check_index": _check_index, "check_range": _check_range, "wrap_index": _wrap_index, "philox": uniform,
}  # fmt: skip


OPEN = Table("stagefold.numpy", TABLE)
"""With the prims of other vocabularies, by "namespace.name": functions of arrays."""


COMBINE: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "any": np.logical_or,
    "all": np.logical_and, "xor_sum": np.bitwise_xor, "logaddexp": np.logaddexp,
}  # fmt: skip
"""What two elements of a reduction or a scan come to."""


def reduce(reduction: str, array: Array, count: int, dtype: str) -> tuple[Array, ...]:
    """Combine the last axis of an array of shape (..., count)."""
    kind = held_type(dtype)
    with np.errstate(all="ignore"):
        if reduction in ("sum", "prod"):
            return (COMBINE[reduction].reduce(array, -1, dtype=kind),)
        if reduction in ("max", "min"):
            start = number(neutral(reduction, str(array.dtype)))
            return (COMBINE[reduction].reduce(array, -1, initial=start),)
        if reduction in ("argmax", "argmin"):
            return (getattr(np, reduction)(array, -1),)
        if reduction == "welford":
            wide = array.astype(np.float64)
            mean = np.mean(wide, -1) if count else np.zeros(array.shape[:-1])
            squares = np.sum((wide - mean[..., None]) ** 2, -1)
            return mean.astype(kind), squares.astype(kind), np.full(mean.shape, count, kind)
        if reduction in COMBINE:
            return (COMBINE[reduction].reduce(array, -1),)
    raise NotInterpretable(f"no numpy meaning for the reduction {reduction}")


def scan(kind: str, array: Array, dtype: str) -> Array:
    """Combine each element of the last axis with those before it."""
    with np.errstate(all="ignore"):
        return COMBINE[kind].accumulate(np.asarray(array, held_type(dtype)), -1)
