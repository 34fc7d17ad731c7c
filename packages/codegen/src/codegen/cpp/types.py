"""How each dtype is stored in memory and held in a C++ local."""

from __future__ import annotations

from typing import NamedTuple

from codegen.errors import UnsupportedType


class CType(NamedTuple):
    """`storage`: the type in memory; `local`: the type of a value; `load`, `store`: conversions ("" for none);
    `suffix`: which family of prelude functions computes with it; `rounding`: applied after inexact arithmetic."""

    storage: str
    local: str
    suffix: str
    load: str = ""
    store: str = ""
    rounding: str = ""


C_TYPES: dict[str, CType] = {
    "float32": CType("f32", "f32", "f32"),
    "float64": CType("f64", "f64", "f64"),
    "bfloat16": CType("u16", "f32", "f32", "sf_load_bf16", "sf_store_bf16", "sf_round_bf16"),
    "float16": CType("_Float16", "f32", "f32", "sf_load_f16", "sf_store_f16", "sf_round_f16"),
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

BITS: dict[str, int] = {"int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint8": 8, "uint16": 16, "uint32": 32,
                        "uint64": 64}  # fmt: skip


def c_type(dtype: str) -> CType:
    """The row of `dtype`; complex and 8-bit floats have none."""
    found = C_TYPES.get(dtype)
    if found is None:
        raise UnsupportedType(f"kernels cannot compute with {dtype}; they know {', '.join(C_TYPES)}")
    return found


def is_floating(dtype: str) -> bool:
    """float16, bfloat16, float32 or float64."""
    return dtype in ("float32", "float64", "bfloat16", "float16")


def is_integer(dtype: str) -> bool:
    """Any integer type; bool is none."""
    return dtype in BITS
