"""Reading and rewriting the index expressions of frozen kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loopir import index as ix
from stagewire.expr import Dim
from stagewire.loop import AxisAtom, Index, IndexValue, Kernel, Load, Section, Statement, Store


def indices_of(section: Section) -> Iterator[Index]:
    """Every index expression of a section."""
    for statement in section.statements:
        if isinstance(statement, Load | Store | IndexValue):
            yield statement.index


def change_indices(section: Section, change: Callable[[Index], Index]) -> tuple[Statement, ...]:
    """The statements with every index expression replaced."""
    result: list[Statement] = []
    for statement in section.statements:
        match statement:
            case Load(name, buffer, index, dtype, mask, other):
                result.append(Load(name, buffer, change(index), dtype, mask, other))
            case Store(buffer, index, value, mode, mask):
                result.append(Store(buffer, change(index), value, mode, mask))
            case IndexValue(name, index, dtype):
                result.append(IndexValue(name, change(index), dtype))
            case _:
                result.append(statement)
    return tuple(result)


def coefficients(index: Index) -> tuple[dict[str, Dim], set[str]]:
    """The coefficient of every axis that occurs plainly, and the axes that occur inside quotients or remainders."""
    plain: dict[str, Dim] = {}
    nested: set[str] = set()
    for term in index.terms:
        if isinstance(term.atom, AxisAtom):
            plain[term.atom.name] = term.coefficient
        else:
            nested |= ix.axes_of(Index(0, (term,)))
    return plain, nested


def kernel_sizes(kernel: Kernel) -> dict[str, Dim]:
    """The size of every axis."""
    sizes = {axis.name: axis.size for axis in kernel.axes}
    for section in kernel.sections:
        sizes.update({axis.name: axis.size for axis in section.axes})
    return sizes
