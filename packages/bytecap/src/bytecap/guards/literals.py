"""Literals and relations of guard data: as Python values, and as postfix programs for the C evaluator."""

from __future__ import annotations

from collections.abc import Mapping

import torch

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


class _Missing:
    """A source that has no value in the live frame."""


MISSING = _Missing()


_PLAIN = frozenset((type(None), bool, int, float, str))


def to_python(value: graph.Arg) -> object:
    """The Python value of a literal; GuardError for what is not a literal (refs, handles).

    >>> to_python(graph.Tuple((1, graph.DTypeArg("float32"))))
    (1, torch.float32)
    """
    if type(value) in _PLAIN:
        return value
    match value:
        case graph.Tuple(items=items):
            return tuple(to_python(item) for item in items)
        case graph.List(items=items):
            return [to_python(item) for item in items]
        case graph.Dict(items=items):
            return {key: to_python(item) for key, item in items}
        case graph.Slice(start=start, stop=stop, step=step):
            return slice(to_python(start), to_python(stop), to_python(step))
        case graph.Ellipsis():
            return ...
        case graph.DTypeArg(name=name) | graph.LayoutArg(name=name):
            return getattr(torch, name)
        case graph.MemoryFormatArg(name=name):
            return getattr(torch, name)
        case graph.DeviceArg(name=name):
            return torch.device(name)
        case graph.NonFinite(text=text):
            return float(text)
        case graph.Complex(real=real, imag=imag):
            return complex(_part(real), _part(imag))
    raise GuardError(f"{value!r} is not a literal")


def _part(value: float | graph.NonFinite) -> float:
    return float(value.text) if isinstance(value, graph.NonFinite) else value


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
