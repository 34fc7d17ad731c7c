"""Literals: exact values in a dtype, and the identities that emission applies on the spot."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from stagewire.graph import NonFinite, Ref
from stagewire.literals import FLOATS, INTEGERS, held, literal
from stagewire.loop import Operand
from stagewire.types import DType


def round_literal(operand: Operand, dtype: DType) -> Operand:
    """The literal as a value of `dtype` holds it: rounded, wrapped or truncated.

    >>> round_literal(0.1, "bfloat16")
    0.10009765625
    >>> round_literal(300, "uint8")
    44
    """
    if isinstance(operand, Ref):
        return operand
    if isinstance(operand, NonFinite):
        return True if dtype == "bool" else operand
    value = held(operand, dtype)
    return literal(value) if isinstance(value, float) else value


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
    return _other(operands, 0) if dtype in INTEGERS else None


def _junction(deciding: bool) -> Rule:
    """and, which False decides, and or, which True decides."""

    def rule(operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
        literals = [o for o in operands if isinstance(o, bool)]
        if deciding in literals:
            return deciding
        return not deciding if len(literals) == 2 else _other(operands, not deciding) if source == "bool" else None

    return rule


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
    "logical_and": _junction(False),
    "logical_or": _junction(True),
    **{name: _compare(getattr(operator, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}


def _is_negative_zero(operand: Operand) -> bool:
    return isinstance(operand, float) and math.copysign(1.0, operand) < 0
