"""What the statements of loop kernels have in common: the values that they define and use, their indices, and how these
are replaced. Whoever looks at all statements alike asks here; only their meaning is written kind by kind elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any

from msgspec.structs import replace

from stagewire import index as ix
from stagewire.expr import Dim
from stagewire.graph import Ref, references
from stagewire.loop import (
    Axis,
    Compute,
    Extern,
    Index,
    IndexValue,
    Kernel,
    Load,
    Operand,
    Reduce,
    Scan,
    Section,
    Statement,
    Step,
    Store,
)
from stagewire.types import numel

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


def accesses(kernel: Kernel) -> Iterator[tuple[int, int, Load | Store]]:
    """Number of the section, number in it, and statement, of every load and store."""
    for position, section in enumerate(kernel.sections):
        for number, statement in enumerate(section.statements):
            if isinstance(statement, Load | Store):
                yield position, number, statement


def buffers_of(step: Step) -> list[str]:
    """The buffers that a step reads or writes, in order of appearance, with repetitions."""
    if isinstance(step, Kernel):
        return [one.buffer for one in select(step.sections, Load | Store)]
    return [*reads_of(step), *writes_of(step)]


def reads_of(step: Step) -> list[str]:
    """The buffers that a step reads, with repetitions."""
    if isinstance(step, Extern):
        return [name for arg in (*step.args, *step.kwargs.values()) for name in references(arg)]
    return [one.buffer for one in select(step.sections, Load)] if isinstance(step, Kernel) else []


def writes_of(step: Step) -> list[str]:
    """The buffers that a step writes, with repetitions."""
    if isinstance(step, Extern):
        return [name for name in step.results if name]
    return [one.buffer for one in select(step.sections, Store)] if isinstance(step, Kernel) else []


def points_of(axes: Iterable[Axis]) -> Dim:
    """How many points a loop nest has."""
    return numel(tuple([axis.size for axis in axes]))


def place_on(axes: Iterable[Axis]) -> tuple[Index, ...]:
    """The coordinates of a point of a loop nest, one by axis."""
    return tuple([ix.axis(axis.name) for axis in axes])


def map_statements(kernel: Kernel, change: Callable[[Statement], Statement]) -> Kernel:
    """The kernel with each of its statements passed through `change`."""
    sections = tuple([Section(one.axes, tuple(map(change, one.statements))) for one in kernel.sections])
    return replace(kernel, sections=sections)


def map_buffers(kernel: Kernel, names: Mapping[str, str]) -> Kernel:
    """The kernel on other buffers."""

    def change(statement: Statement) -> Statement:
        if isinstance(statement, Load | Store) and statement.buffer in names:
            return replace(statement, buffer=names[statement.buffer])
        return statement

    return map_statements(kernel, change)


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


def makers(statements: Sequence[Statement], values: Iterable[str]) -> list[Statement]:
    """The statements that compute these values at a point, in order; what a `Reduce` gives is there behind them all."""
    made_here = [one for one in statements if not isinstance(one, Reduce)]
    return live_statements(made_here, lambda statement: False, set(values))


def live_statements(
    statements: Sequence[Statement], is_needed: Callable[[Statement], bool], used: set[str]
) -> list[Statement]:
    """The statements that are needed, or define what is in `used`, which grows by what all of these use."""
    found: list[Statement] = []
    for statement in reversed(statements):
        if is_needed(statement) or not used.isdisjoint(results(statement)):
            add_used_values(statement, used)
            found.append(statement)
    return found[::-1]


def rename(statement: Statement, names: Mapping[str, str]) -> Statement:
    """The statement under other names of axes and of values: those that it defines and those that it uses."""
    named = map_operands(statement, lambda one: Ref(names.get(one.name, one.name)) if isinstance(one, Ref) else one)
    named = map_indices(named, lambda index: ix.rename(index, names) if index.terms else index)
    if isinstance(named, Store):
        return named
    if isinstance(named, Reduce):
        return replace(named, results=tuple([names.get(result, result) for result in named.results]))
    return replace(named, result=names.get(named.result, named.result))


def axes_of_values(statements: Iterable[Statement]) -> dict[str, set[str]]:
    """For each value that statements make, in order, the axes with which it changes."""
    found: dict[str, set[str]] = {}
    for statement in statements:
        axes = used_axes(statement).union(*(found.get(name, set()) for name in used_values(statement)))
        for name in results(statement):
            found[name] = axes
    return found


def summed_products(statements: Iterable[Statement]) -> dict[str, tuple[str, str]]:
    """For each sum of products of two values, by its name, the names of these."""
    made: dict[str, tuple[str, str]] = {}
    found: dict[str, tuple[str, str]] = {}
    for statement in statements:
        match statement:
            case Compute(result, "mul", (Ref(a), Ref(b))):
                made[result] = a, b
            case Reduce((total,), "sum", Ref(name)) if name in made:
                found[total] = made[name]
    return found


def settled(statement: Statement, known: dict[str, bool]) -> Statement | None:
    """The statement where the truth of some values is known, which grows by what follows; None if it does nothing."""
    match statement:
        case Compute(result, "where", (condition, yes, no), dtype) if (truth := _truth(condition, known)) is not None:
            return Compute(result, "convert", (yes if truth else no,), dtype)
        case Compute(result, "logical_and" | "logical_or" as op, (left, right), "bool"):
            for one, other in ((left, right), (right, left)):
                truth = _truth(one, known)
                if truth is not None and truth == (op == "logical_or"):
                    known[result] = truth
                elif truth is not None and (second := _truth(other, known)) is not None:
                    known[result] = second
        case Compute(result, "logical_not", (operand,), "bool") if (truth := _truth(operand, known)) is not None:
            known[result] = not truth
        case Load(mask=Ref() as mask) if (truth := _truth(mask, known)) is not None:
            if not truth:
                return Compute(statement.result, "convert", (statement.other,), statement.dtype)
            return replace(statement, mask=None, other=0)
        case Store(mask=Ref() as mask) if (truth := _truth(mask, known)) is not None:
            return replace(statement, mask=None) if truth else None
    return statement


def _truth(operand: Operand, known: dict[str, bool]) -> bool | None:
    return known.get(operand.name) if isinstance(operand, Ref) else operand if isinstance(operand, bool) else None


def merge_axes(axes: tuple[Axis, ...], sections: tuple[Section, ...]) -> tuple[tuple[Axis, ...], tuple[Section, ...]]:
    """Axes, and sections inside of them, where neighbours that every index sees as one are one: the inner of them."""
    position = 0
    while position + 1 < len(axes):
        outer, inner = axes[position], axes[position + 1]
        every = [index for section in sections for s in section.statements for index in indices(s)]
        if not all(ix.may_merge(index, outer.name, inner.name, inner.size) for index in every):
            position += 1
            continue
        merged = Axis(inner.name, outer.size * inner.size)
        meaning = {outer.name: ix.ZERO, inner.name: ix.axis(merged.name)}
        sections = tuple([
            Section(one.axes, tuple([map_indices(s, partial(ix.inline, mapping=meaning)) for s in one.statements]))
            for one in sections
        ])  # fmt: skip
        axes = (*axes[:position], merged, *axes[position + 2 :])
    return axes, sections
