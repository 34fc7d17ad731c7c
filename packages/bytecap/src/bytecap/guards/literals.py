"""Literals and relations of guard data: as Python values, and as postfix programs for the C evaluator."""

from __future__ import annotations

from collections.abc import Mapping

from absint.wire import from_arg
from stagewire import graph
from stagewire.capture import Relation
from stagewire.errors import StageError
from stagewire.expr import Dim, steps_of


class GuardError(StageError):
    """A guard that cannot be compiled: no such value, not a literal, an unknown type or module."""

    code = "BC020"
    fix = "Guard on a value that the frame can reach without running user code."


class GuardDoesNotHold(GuardError):
    """A guard that is false for the very frame it was made from."""

    code = "BC021"
    fix = "The captured code changes the value that the guard reads; report it with the function."


MISSING = object()
"""Stands for the value of a source that has none in the live frame."""


def to_python(value: graph.Arg) -> object:
    """The Python value of a literal; GuardError for what is not a literal (refs, handles).

    >>> to_python(graph.Tuple((1, graph.DTypeArg("float32"))))
    (1, torch.float32)
    """
    return from_arg(value, _refuse)


def _refuse(value: object) -> object:
    raise GuardError(f"{value!r} is not a literal")


Op = tuple[str, int]


def postfix(dim: Dim, symbols: Mapping[str, int]) -> tuple[Op, ...]:
    """`dim` as postfix operations; a symbol becomes its index.

    >>> from stagewire.expr import parse_expr
    >>> postfix(parse_expr("2*s0"), {"s0": 0})
    (('const', 2), ('symbol', 0), ('*', 0))
    """
    found: list[Op] = []
    for kind, operand in steps_of(dim):
        if isinstance(operand, int):
            found.append(("const", operand))
        elif not operand:
            found.append((kind.lower(), 0))
        elif operand in symbols:
            found.append((kind, symbols[operand]))
        else:
            raise GuardError(f"the symbol {operand!r} of {str(dim)!r} has no source")
    return tuple(found)


def relation_program(relation: Relation, symbols: Mapping[str, int]) -> tuple[Op, ...]:
    """The whole condition: not zero when it holds."""
    left, right = postfix(relation.left, symbols), postfix(relation.right, symbols)
    return (*left, *right, (relation.operator, 0))
