"""How each dtype is stored in memory and held in a C++ local, and numbers as C++ text."""

from __future__ import annotations

import math
from typing import NamedTuple

from codegen.errors import UnsupportedType
from stagewire.graph import NonFinite
from stagewire.literals import FLOATS, INTEGERS, held, number


class CType(NamedTuple):
    """`storage`: the type in memory; `local`: the type of a value; `load`, `store`: conversions ("" for none);
    `suffix`: which family of prelude functions computes with it; `rounding`: applied after inexact arithmetic; `pack`:
    `store` of a value that is rounded."""

    storage: str
    local: str
    suffix: str
    load: str = ""
    store: str = ""
    rounding: str = ""
    pack: str = ""


C_TYPES: dict[str, CType] = {
    "float32": CType("f32", "f32", "f32"),
    "float64": CType("f64", "f64", "f64"),
    "bfloat16": CType("u16", "f32", "f32", "sf_load_bf16", "sf_store_bf16", "sf_round_bf16", "sf_pack_bf16"),
    "float16": CType("u16", "f32", "f32", "sf_load_f16", "sf_store_f16", "sf_round_f16", "sf_pack_f16"),
    "int64": CType("i64", "i64", "i64"),
    "int32": CType("i32", "i32", "i64"),
    "int16": CType("i16", "i16", "i64"),
    "int8": CType("i8", "i8", "i64"),
    "uint8": CType("u8", "u8", "i64"),
    "uint16": CType("u16", "u16", "i64"),
    "uint32": CType("u32", "u32", "i64"),
    "uint64": CType("u64", "u64", "u64"),
    "bool": CType("u8", "bool", "bool", store="(u8)"),
}


def c_type(dtype: str) -> CType:
    """The row of `dtype`; complex and 8-bit floats have none."""
    found = C_TYPES.get(dtype)
    if found is None:
        raise UnsupportedType(f"kernels cannot compute with {dtype}; they know {', '.join(C_TYPES)}")
    return found


def literal(value: bool | int | float | NonFinite, dtype: str) -> str:
    """`value` as a C++ constant of the local type of `dtype`; integers wrap, as torch's casts do.

    >>> literal(0.1, "float32"), literal(NonFinite("-inf"), "float64"), literal(300, "uint8"), literal(2, "bool")
    ('0.10000000149011612f', '-__builtin_inf()', '((u8)44)', 'true')
    """
    value = number(value)
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in FLOATS:
        return _float(float(value), single=c_type(dtype).local == "f32")
    return _integer(int(value), dtype)


def _float(value: float, single: bool) -> str:
    mark = "f" if single else ""
    if single:
        value = held(value, "float32")
    if math.isnan(value):
        return f'__builtin_nan{mark}("")'
    if math.isinf(value):
        return ("-" if value < 0 else "") + f"__builtin_inf{mark}()"
    text = repr(value)
    return f"({text}{mark})" if text.startswith("-") else text + mark


def _integer(value: int, dtype: str) -> str:
    value, bits = int(held(value, dtype)), INTEGERS[dtype][0]
    if value == -(1 << 63):
        return "(-9223372036854775807ll - 1)"
    text = f"{value}ull" if dtype == "uint64" else f"{value}ll" if bits >= 32 else str(value)
    return f"(({c_type(dtype).local}){text})"
