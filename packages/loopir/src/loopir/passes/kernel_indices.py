"""Reading and rewriting the index expressions of frozen kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

from stagewire import index as ix
from stagewire.expr import Dim
from stagewire.loop import AxisAtom, Index, IndexValue, Load, Section, Statement, Store

INDEXED = frozenset({Load, Store, IndexValue})


def indices_of(section: Section) -> Iterator[Index]:
    """Every index expression of a section."""
    for statement in section.statements:
        if statement.__class__ in INDEXED:
            yield statement.index  # type: ignore[union-attr]


def change_indices(section: Section, change: Callable[[Index], Index]) -> tuple[Statement, ...]:
    """The statements with every index expression replaced."""
    result: list[Statement] = []
    for statement in section.statements:
        kind = statement.__class__
        if kind not in INDEXED:
            result.append(statement)
            continue
        index = change(statement.index)  # type: ignore[union-attr]
        if index is statement.index:  # type: ignore[union-attr]
            result.append(statement)
        elif kind is Load:
            old = cast(Load, statement)
            result.append(Load(old.result, old.buffer, index, old.dtype, old.mask, old.other))
        elif kind is Store:
            result.append(Store(statement.buffer, index, statement.value, statement.mode, statement.mask))  # type: ignore[union-attr]
        else:
            result.append(IndexValue(statement.result, index, statement.dtype))  # type: ignore[union-attr]
    return tuple(result)


def coefficients(index: Index) -> tuple[dict[str, Dim], set[str]]:
    """The coefficient of every axis that occurs plainly, and the axes that occur inside quotients or remainders."""
    plain: dict[str, Dim] = {}
    nested: set[str] = set()
    for term in index.terms:
        if term.atom.__class__ is AxisAtom:
            plain[term.atom.name] = term.coefficient  # type: ignore[union-attr]
        else:
            nested |= ix.axes_of(Index(0, (term,)))
    return plain, nested
