"""Numbers in documents: floats that JSON has no literal for, and numbers as a tensor of a dtype holds them."""

from __future__ import annotations

import math
import struct

from stagewire.graph import NonFinite

FLOATS = frozenset(("float16", "bfloat16", "float32", "float64"))
HALVES = frozenset(("float16", "bfloat16"))
INTEGERS = {f"{sign}int{bits}": (bits, not sign) for bits in (8, 16, 32, 64) for sign in ("", "u")}
"""By name: how many bits, and whether one is the sign."""


def literal(value: float) -> float | NonFinite:
    """A Python float as an argument: inf and nan by name.

    >>> literal(0.5), literal(-math.inf)
    (0.5, NonFinite(text='-inf'))
    """
    return value if value - value == 0 else NonFinite("nan" if value != value else "inf" if value > 0 else "-inf")


def number(value: bool | int | float | NonFinite) -> bool | int | float:
    """The Python number that a literal is."""
    return float(value.text) if isinstance(value, NonFinite) else value


def held(value: bool | int | float, dtype: str) -> bool | int | float:
    """The number as a tensor of `dtype` holds it, by torch's casts: integers wrap, floats round through float32.

    Raises ValueError and OverflowError for nan and inf as an integer, KeyError for a dtype of no such numbers.

    >>> held(0.1, "bfloat16"), held(300, "uint8"), held(1e6, "float16"), held(2.7, "int64")
    (0.10009765625, 44, inf, 2)
    """
    if dtype == "bool":
        return bool(value)
    if dtype in FLOATS:
        return _rounded(float(value), dtype)
    bits, signed = INTEGERS[dtype]
    wrapped = int(value) % (1 << bits)
    return wrapped - (1 << bits) if signed and wrapped >= 1 << (bits - 1) else wrapped


def limits(dtype: str) -> tuple[int, int]:
    """The least and the greatest integer of a dtype; False and True are 0 and 1."""
    if dtype == "bool":
        return 0, 1
    bits, signed = INTEGERS[dtype]
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


_NEUTRAL = {
    "sum": 0, "xor_sum": 0, "any": 0, "welford": 0, "prod": 1, "all": 1, "max": -math.inf, "min": math.inf,
    "argmax": -math.inf, "argmin": math.inf, "logaddexp": -math.inf,
}  # fmt: skip


def neutral(kind: str, dtype: str) -> bool | int | float | NonFinite:
    """What a reduction or scan of a kind starts from: it changes nothing (what is as good as the start of a position
    comes before it). An infinity is the last integer of a dtype.

    >>> neutral("max", "int8"), neutral("all", "bool"), neutral("prod", "float32")
    (-128, True, 1.0)
    """
    value = _NEUTRAL[kind]
    if dtype == "bool":
        return value > 0
    if dtype in FLOATS:
        return literal(float(value))
    low, high = limits(dtype)
    return low if value < low else high if value > high else int(value)


def wider(dtype: str) -> str:
    """The dtype in which values of a dtype are added up: float32 for half precision."""
    return "float32" if dtype in HALVES else dtype


def _rounded(value: float, dtype: str) -> float:
    if dtype == "float64" or not math.isfinite(value):
        return value
    try:
        single: float = struct.unpack("<f", struct.pack("<f", value))[0]
        if dtype == "float16":
            return struct.unpack("<e", struct.pack("<e", single))[0]  # type: ignore[no-any-return]
    except OverflowError:
        return math.copysign(math.inf, value)
    if dtype == "float32":
        return single
    (bits,) = struct.unpack("<I", struct.pack("<f", single))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]  # type: ignore[no-any-return]
