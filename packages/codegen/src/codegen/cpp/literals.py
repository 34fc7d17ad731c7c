"""Numbers as C++ text."""

from __future__ import annotations

import math
import re

from codegen.cpp.types import BITS, c_type, is_floating
from stagewire.graph import NonFinite
from stagewire.literals import held, number


def literal(value: bool | int | float | NonFinite, dtype: str) -> str:
    """`value` as a C++ constant of the local type of `dtype`; integers wrap, as torch's casts do.

    >>> literal(0.1, "float32"), literal(NonFinite("-inf"), "float64"), literal(300, "uint8"), literal(2, "bool")
    ('0.10000000149011612f', '-__builtin_inf()', '((u8)44)', 'true')
    """
    value = number(value)
    if dtype == "bool":
        return "true" if value else "false"
    if is_floating(dtype):
        return _float(float(value), single=c_type(dtype).local == "f32")
    return _integer(int(value), dtype)


_NUMBER = re.compile(r"\(?-?(\d|__builtin_inf)")


def is_number(text: str) -> bool:
    """Whether an operand is a literal other than nan.

    >>> is_number("(-1.5f)"), is_number("-__builtin_inff()"), is_number('__builtin_nanf("")'), is_number("v0")
    (True, True, False, False)
    """
    return _NUMBER.match(text) is not None


def _float(value: float, single: bool) -> str:
    mark = "f" if single else ""
    if single:
        value = held(value, "float32")
    if math.isnan(value):
        return f'__builtin_nan{mark}("")'
    if math.isinf(value):
        return ("-" if value < 0 else "") + f"__builtin_inf{mark}()"
    text = repr(value)
    if "." not in text and "e" not in text:
        text += ".0"
    return f"({text}{mark})" if text.startswith("-") else text + mark


def _integer(value: int, dtype: str) -> str:
    value, bits = int(held(value, dtype)), BITS[dtype]
    if value == -(1 << 63):
        return "(-9223372036854775807ll - 1)"
    text = f"{value}ull" if dtype == "uint64" else f"{value}ll" if bits >= 32 else str(value)
    return f"(({c_type(dtype).local}){text})"
