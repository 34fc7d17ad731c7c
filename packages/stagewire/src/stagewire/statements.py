"""What the statements of loop kernels have in common: the values that they define and use, their indices, and how these
are replaced. Whoever looks at all statements alike asks here; only their meaning is written kind by kind elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import is_
from typing import Any

from msgspec.structs import replace

from stagewire import index as ix
from stagewire.graph import Ref
from stagewire.loop import Compute, Index, IndexValue, Kernel, Load, Operand, Reduce, Scan, Section, Statement, Store

INDEXED = frozenset({Load, Store, IndexValue})
_OPERANDS: dict[type, tuple[str, ...]] = {
    Load: ("mask", "other"), Store: ("value", "mask"), IndexValue: (), Reduce: ("operand",), Scan: ("operand",),
}  # fmt: skip
"""The fields of a statement that are operands; those of a `Compute` are `operands`."""


def statements_of(kernel: Kernel) -> Iterator[Statement]:
    """Every statement of a kernel, in order."""
    for section in kernel.sections:
        yield from section.statements


def select(sections: Iterable[Section], kind: Any) -> list[Any]:
    """The statements of a kind (or a union of kinds) in sections, in order."""
    kinds = getattr(kind, "__args__", (kind,))
    return [one for section in sections for one in section.statements if one.__class__ in kinds]


def results(statement: Statement) -> tuple[str, ...]:
    """The values that a statement defines."""
    if isinstance(statement, Store):
        return ()
    return statement.results if isinstance(statement, Reduce) else (statement.result,)


def operands(statement: Statement) -> tuple[Operand, ...]:
    """What a statement takes, masks included: values and literals."""
    if statement.__class__ is Compute:
        return statement.operands
    found = [getattr(statement, field) for field in _OPERANDS[statement.__class__]]
    return tuple([one for one in found if one is not None])


def indices(statement: Statement) -> tuple[Index, ...]:
    """The index expressions of a statement: several where it names an element by coordinates."""
    if statement.__class__ not in INDEXED:
        return ()
    index = statement.index
    return index if index.__class__ is tuple else (index,)


def used_values(statement: Statement) -> set[str]:
    """The values that a statement uses, in operands and indices."""
    used: set[str] = set()
    add_used_values(statement, used)
    return used


def add_used_values(statement: Statement, used: set[str]) -> None:
    """Put the values that a statement uses into `used`."""
    kind = statement.__class__
    found = statement.operands if kind is Compute else map(statement.__getattribute__, _OPERANDS[kind])  # type: ignore[union-attr]
    for operand in found:
        if operand.__class__ is Ref:
            used.add(operand.name)
    if kind in INDEXED:
        for index in indices(statement):
            if index.terms:
                ix.add_values(index, used)


def used_axes(statement: Statement) -> set[str]:
    """The axes that the indices of a statement name."""
    return {name for index in indices(statement) for name in ix.axes_of(index)}


def map_operands(statement: Statement, change: Callable[[Operand], Any]) -> Statement:
    """The statement with each of its operands passed through `change`."""
    if isinstance(statement, Compute):
        new = tuple([change(operand) for operand in statement.operands])
        return Compute(statement.result, statement.op, new, statement.dtype)
    changed = {}
    for field in _OPERANDS[statement.__class__]:
        old = getattr(statement, field)
        if old is not None and (other := change(old)) is not old:
            changed[field] = other
    return replace(statement, **changed) if changed else statement


def map_indices(statement: Statement, change: Callable[[Index], Index]) -> Statement:
    """The statement with each of its index expressions passed through `change`."""
    if statement.__class__ not in INDEXED:
        return statement
    old = statement.index
    if old.__class__ is tuple:
        new = tuple([change(one) if one.terms else one for one in old])
        return statement if all(map(is_, old, new)) else replace(statement, index=new)
    index = change(old)
    return statement if index is old else replace(statement, index=index)


def replace_values(statement: Statement, values: Mapping[str, Operand]) -> Statement:
    """The statement with uses of values replaced; those of an index and of a mask only by values."""
    if not values or values.keys().isdisjoint(used_values(statement)):
        return statement
    mask = getattr(statement, "mask", None)
    names = {old: new.name for old, new in values.items() if isinstance(new, Ref)}

    def operand(old: Operand) -> Operand:
        new = values.get(old.name, old) if isinstance(old, Ref) else old
        return old if old is mask and not isinstance(new, Ref) else new

    return map_indices(map_operands(statement, operand), lambda index: ix.rename(index, names))


def rename(statement: Statement, names: Mapping[str, str]) -> Statement:
    """The statement under other names of axes and of values: those that it defines and those that it uses."""
    named = map_operands(statement, lambda one: Ref(names.get(one.name, one.name)) if isinstance(one, Ref) else one)
    named = map_indices(named, lambda index: ix.rename(index, names) if index.terms else index)
    if isinstance(named, Store):
        return named
    if isinstance(named, Reduce):
        return replace(named, results=tuple([names.get(result, result) for result in named.results]))
    return replace(named, result=names.get(named.result, named.result))
