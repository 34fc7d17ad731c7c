"""The vocabulary that printer and parser share: short dtype names, which names print bare, which structs are blocks.

name  ::= letters, digits, "_" and "."  |  JSON string
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import msgspec

from stagewire.capture import CustomFunction
from stagewire.grad import Binding
from stagewire.graph import Graph
from stagewire.loop import LoopGraph
from stagewire.program import Unit

SHORT_DTYPE: dict[str, str] = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "b8",
    "complex64": "c64", "complex128": "c128", "complex32": "c32", "float8_e4m3fn": "f8e4m3fn",
    "float8_e5m2": "f8e5m2", "float8_e4m3fnuz": "f8e4m3fnuz", "float8_e5m2fnuz": "f8e5m2fnuz",
}  # fmt: skip
STORE_SIGN: dict[str, str] = {"set": "=", "atomic_add": "+=", "sum": "sum="}
LONG_DTYPE: dict[str, str] = {short: long for long, short in SHORT_DTYPE.items()}

BLOCKS: tuple[type[msgspec.Struct], ...] = (Binding, Graph, LoopGraph, Unit, CustomFunction)
"""Structs that print as `name { lines }` instead of `name = Class(field=value)`; in a sequence as `Class { lines }`."""

LEAF_CALLS: dict[str, str] = {
    "DTypeArg": "dtype", "DeviceArg": "device", "LayoutArg": "layout", "MemoryFormatArg": "memory_format",
    "Callee": "callee", "HandleRef": "handle",
}  # fmt: skip
"""Arguments of one string, printed `dtype(float32)`."""

KEYWORDS = frozenset(
    [
        "_",
        "input",
        "return",
        "kernel",
        "section",
        "free",
        "load",
        "store",
        "reduce",
        "index",
        "call",
        "launch",
        "release",
        "with",
        "grad",
        "of",
        "reuse",
        "if",
        "else",
    ]
)
"""Words that begin a line or an operation: a target of this name is quoted."""

RESERVED = frozenset({"None", "True", "False", "inf", "nan", "Expr"})

BARE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]*")
DEVICE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(:[0-9]+)?")
TARGET = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def quote(text: str) -> str:
    """A JSON string of ASCII characters."""
    return json.dumps(text)


def bare(text: str, pattern: re.Pattern[str] = BARE) -> str:
    """`text` itself where it matches `pattern`, else quoted."""
    return text if pattern.fullmatch(text) else quote(text)


def fields_of(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The fields of a struct with resolved types, in order."""
    return _fields_of(kind)


@lru_cache(maxsize=256)
def _fields_of(kind: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def is_default(field: msgspec.structs.FieldInfo, value: Any) -> bool:
    """True where the field may be left out of the text."""
    return not field.required and type(value) is type(field.default) and value == field.default
