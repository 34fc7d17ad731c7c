"""Which values a statement reads."""

from __future__ import annotations

from collections.abc import Iterator

from stagewire.graph import Ref
from stagewire.loop import (
    Compute,
    FloorDivAtom,
    Index,
    IndexValue,
    Load,
    ModAtom,
    Reduce,
    Scan,
    Statement,
    Store,
    ValueAtom,
)


def used_values(statement: Statement) -> Iterator[str]:
    """Names, with repetitions."""
    match statement:
        case Load():
            operands = (statement.mask, statement.other)
        case Store():
            operands = (statement.value, statement.mask)
        case Compute():
            operands = statement.operands
        case Reduce() | Scan():
            operands = (statement.operand,)
        case _:
            operands = ()
    for operand in operands:
        if isinstance(operand, Ref):
            yield operand.name
    if isinstance(statement, Load | Store | IndexValue):
        yield from values_of(statement.index)


def values_of(index: Index) -> Iterator[str]:
    """Names of the values that take part in an index."""
    for term in index.terms:
        match term.atom:
            case ValueAtom(name):
                yield name
            case FloorDivAtom(numerator) | ModAtom(numerator):
                yield from values_of(numerator)
