"""Literals: exact values in a dtype, and the identities that emission applies on the spot."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable

from stagewire.graph import NonFinite, Ref
from stagewire.loop import Operand
from stagewire.types import DType

FLOATS: frozenset[str] = frozenset({"float16", "bfloat16", "float32", "float64"})
INT_BITS: dict[str, tuple[int, bool]] = {
    "int8": (8, True), "int16": (16, True), "int32": (32, True), "int64": (64, True),
    "uint8": (8, False), "uint16": (16, False), "uint32": (32, False), "uint64": (64, False),
}  # fmt: skip


def round_literal(literal: Operand, dtype: DType) -> Operand:
    """The literal as a value of `dtype` holds it: rounded, wrapped or truncated.

    >>> round_literal(0.1, "bfloat16")
    0.10009765625
    >>> round_literal(300, "uint8")
    44
    """
    if isinstance(literal, NonFinite):
        return True if dtype == "bool" else literal
    if isinstance(literal, Ref):
        return literal
    if dtype == "bool":
        return bool(literal)
    if dtype in INT_BITS:
        bits, signed = INT_BITS[dtype]
        wrapped = int(literal) % (1 << bits)
        return wrapped - (1 << bits) if signed and wrapped >= 1 << (bits - 1) else wrapped
    if dtype in FLOATS:
        return _round_float(float(literal), dtype)
    return literal


def number(value: float) -> float | NonFinite:
    """A Python float as an operand: non-finite values by name."""
    if math.isnan(value):
        return NonFinite("nan")
    if math.isinf(value):
        return NonFinite("inf" if value > 0 else "-inf")
    return value


def _round_float(value: float, dtype: DType) -> float | NonFinite:
    if dtype == "float64":
        return number(value)
    if not math.isfinite(value):
        return number(value)
    try:
        if dtype == "float16":
            return number(struct.unpack("<e", struct.pack("<e", value))[0])
        single = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return NonFinite("inf" if value > 0 else "-inf")
    if dtype == "float32":
        return number(single)
    (bits,) = struct.unpack("<I", struct.pack("<f", single))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return number(struct.unpack("<f", struct.pack("<I", bits))[0])


def fold(op: str, operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
    """What `op(operands)` is without computing it, or None. Only identities that hold for nan, inf and -0.0 too.

    `source` is the dtype of the first operand that is a value.
    """
    rule = RULES.get(op)
    return None if rule is None else rule(operands, dtype, source)


Rule = Callable[[tuple[Operand, ...], DType, "DType | None"], "Operand | None"]


def _fold_convert(operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
    (a,) = operands
    if isinstance(a, Ref):
        return a if source == dtype else None
    return None if isinstance(a, NonFinite) and dtype not in FLOATS else round_literal(a, dtype)


def _fold_where(operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
    condition, a, b = operands
    if isinstance(condition, bool):
        return a if condition else b
    return a if isinstance(a, Ref) and a == b else None


def _fold_mul(operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
    return _other(operands, 1) if dtype != "bool" else None


def _fold_div(operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
    a, b = operands
    return a if isinstance(a, Ref) and b == 1 else None


def _fold_sub(operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
    a, b = operands
    return a if isinstance(a, Ref) and b == 0 and not _is_negative_zero(b) else None


def _fold_add(operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
    return _other(operands, 0) if dtype in INT_BITS else None


def _fold_and(operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
    literals = [o for o in operands if isinstance(o, bool)]
    if False in literals or len(literals) == 2:
        return all(literals)
    return _other(operands, True) if source == "bool" else None


def _fold_or(operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
    literals = [o for o in operands if isinstance(o, bool)]
    if True in literals or len(literals) == 2:
        return any(literals)
    return _other(operands, False) if source == "bool" else None


def _compare(relation: Callable[[int, int], bool]) -> Rule:
    def rule(operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
        a, b = operands
        return relation(a, b) if type(a) is int and type(b) is int else None

    return rule


def _other(operands: tuple[Operand, ...], neutral: int) -> Operand | None:
    """The operand beside a neutral literal."""
    a, b = operands
    if b == neutral and isinstance(a, Ref):
        return a
    return b if a == neutral and isinstance(b, Ref) else None


RULES: dict[str, Rule] = {
    "convert": _fold_convert,
    "where": _fold_where,
    "mul": _fold_mul,
    "div": _fold_div,
    "sub": _fold_sub,
    "add": _fold_add,
    "logical_and": _fold_and,
    "logical_or": _fold_or,
    "eq": _compare(operator.eq),
    "ne": _compare(operator.ne),
    "lt": _compare(operator.lt),
    "le": _compare(operator.le),
    "gt": _compare(operator.gt),
    "ge": _compare(operator.ge),
}


def _is_negative_zero(operand: Operand) -> bool:
    return isinstance(operand, float) and math.copysign(1.0, operand) < 0
