"""Pass: on a GPU, a sum of what the last places of an axis choose among is written out for these."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from loopir.passes.split_nests import Writer, is_on_gpu, split_nests
from loopir.schedule import Names, Rewriting, Schedule
from stagewire import index as ix
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Compute,
    Decision,
    Index,
    IndexValue,
    Kernel,
    Load,
    ModAtom,
    Operand,
    Reduce,
    Section,
    Statement,
    Term,
)
from stagewire.statements import live_statements, map_indices, map_operands, rename, results


@dataclass(frozen=True)
class UnrollChoices:
    """Before: the sum over i of x[i] * (low(w[i // 2]) if i % 2 == 0 else high(w[i // 2])), as where four bits are a
    weight: a byte is read for each of its halves, under a mask. After: the sum over half as many i of x[2 i] *
    low(w[i]) + x[2 i + 1] * high(w[i]).

    most: the choices that are written out.
    """

    name = "unroll_choices"
    most: int = 4

    def run(self, schedule: Schedule) -> Schedule:
        return split_nests(schedule, self._split)

    def _split(self, nest: Kernel, state: Rewriting) -> tuple[Kernel] | None:
        if not is_on_gpu(nest, state.buffers):
            return None
        sections = tuple(self._unrolled(section, nest.axes, state.names) for section in nest.sections)
        if sections == nest.sections:
            return None
        state.decisions.append(Decision("inlined", (nest.name,), "a sum of what the last places of an axis choose"))
        return (replace(nest, sections=sections),)

    def _unrolled(self, section: Section, outer: Sequence[Axis], names: Names) -> Section:
        """The section with all choices at each point, if it has some and all that it does is to sum up."""
        sums = [s for s in section.statements if isinstance(s, Reduce)]
        dtypes = {s.result: s.dtype for s in section.statements if isinstance(s, Load | Compute | IndexValue)}
        if len(dtypes) + len(sums) < len(section.statements) or any(
            one.reduction != "sum" or dtypes.get(getattr(one.operand, "name", "")) != one.dtype for one in sums
        ):
            return section
        for axis in section.axes:
            for count in {count for s in section.statements if (count := _choices(s, axis)) <= self.most}:
                if isinstance(axis.size, int) and axis.size % count == 0:
                    return _written_out(section, axis, count, outer, names) or section
        return section


def _choices(statement: Statement, axis: Axis) -> Any:
    """How many last places of an axis a statement counts; infinitely many where it counts none."""
    match statement:
        case IndexValue(index=Index(0, (Term(1, ModAtom(Index(0, (Term(1, AxisAtom(name)),)), int(count))),))):
            return count if name == axis.name else float("inf")
    return float("inf")


def _written_out(section: Section, axis: Axis, count: int, outer: Sequence[Axis], names: Names) -> Section | None:
    """The section at `count` points of an axis at a time; None where that settles no mask."""
    short = Axis(axis.name, axis.size // count)
    sizes = {one.name: one.size for one in (*outer, *section.axes)} | {short.name: short.size}
    made, known, settled = Writer(names), dict[Any, str](), 0
    terms: dict[str, list[Operand]] = {}
    for place in range(count):
        meaning = {axis.name: Index(place, (Term(count, AxisAtom(axis.name)),))}
        values: dict[str, Operand] = {}
        for statement in section.statements:
            moved = map_indices(statement, lambda index, at=meaning: ix.substitute(index, at, sizes))  # type: ignore[misc]
            moved = map_operands(moved, lambda one, at=values: at.get(one.name, one) if isinstance(one, Ref) else one)  # type: ignore[misc]
            if isinstance(moved, Reduce):
                terms.setdefault(moved.results[0], []).append(moved.operand)
                continue
            (result,) = results(moved)
            if isinstance(moved, Load) and isinstance(moved.mask, bool):
                settled += 1
                moved = (
                    replace(moved, mask=None) if moved.mask else Compute(result, "convert", (moved.other,), moved.dtype)
                )
            value = _settled(moved)
            if value is None:
                key = rename(moved, {result: ""})
                if key not in known:
                    known[key] = names("v")
                    made.append(rename(moved, {result: known[key]}))
                value = Ref(known[key])
            values[result] = value
    if not settled:
        return None
    for one in (s for s in section.statements if isinstance(s, Reduce)):
        total, *rest = terms[one.results[0]]
        for term in rest:
            total = made.compute("add", total, term, dtype=one.dtype)
        made.append(replace(one, operand=total))
    axes = tuple(short if one is axis else one for one in section.axes)
    return Section(axes, tuple(live_statements(made, lambda s: isinstance(s, Reduce), set())))


_KNOWN: dict[str, Callable[[Any, Any], bool]] = {
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    "logical_and": operator.and_, "logical_or": operator.or_,
}  # fmt: skip


def _settled(statement: Statement) -> Operand | None:
    """What a statement gives where that is a number, or the value of another."""
    match statement:
        case IndexValue(index=Index(int(number), ())):
            return number
        case Compute(op=op, operands=(int(a), int(b))) if op in _KNOWN:
            return _KNOWN[op](a, b)
        case Compute(op="where", operands=(bool(condition), yes, no)) if isinstance(yes if condition else no, Ref):
            return yes if condition else no
    return None
