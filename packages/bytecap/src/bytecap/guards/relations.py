"""Conditions on size symbols as postfix programs for the C evaluator."""

from __future__ import annotations

from collections.abc import Mapping

from bytecap.guards.errors import GuardError
from stagewire.capture import Relation
from stagewire.expr import Dim, steps_of

Op = tuple[str, int]


def postfix(dim: Dim, symbols: Mapping[str, int]) -> tuple[Op, ...]:
    """`dim` as postfix operations; a symbol becomes its index.

    >>> from stagewire.expr import parse_expr
    >>> postfix(parse_expr("2*s0"), {"s0": 0})
    (('const', 2), ('symbol', 0), ('*', 0))
    """
    return tuple([_operation(*step, dim, symbols) for step in steps_of(dim)])


def _operation(kind: str, operand: str | int, dim: Dim, symbols: Mapping[str, int]) -> Op:
    match operand:
        case int():
            return "const", operand
        case "":
            return kind.lower(), 0
        case _ if operand in symbols:
            return kind, symbols[operand]
    raise GuardError(f"the symbol {operand!r} of {str(dim)!r} has no source")


def relation_program(relation: Relation, symbols: Mapping[str, int]) -> tuple[Op, ...]:
    """The whole condition: not zero when it holds."""
    left, right = postfix(relation.left, symbols), postfix(relation.right, symbols)
    return (*left, *right, (relation.operator, 0))
