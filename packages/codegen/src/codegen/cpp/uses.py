"""Which values a statement reads."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.cpp.indexing import values_of
from stagewire.graph import Ref
from stagewire.loop import Compute, IndexValue, Load, Reduce, Scan, Statement, Store


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
