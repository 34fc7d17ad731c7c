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
from stagewire import loop
from stagewire.graph import Ref
from stagewire.statements import live_statements, map_indices, rename, results, select, settled


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

    def _split(self, nest: loop.Kernel, state: Rewriting) -> tuple[loop.Kernel] | None:
        if not is_on_gpu(nest, state.buffers):
            return None
        sections = tuple(self._unrolled(section, nest.axes, state.names) for section in nest.sections)
        if sections == nest.sections:
            return None
        state.decisions.append(
            loop.Decision("inlined", (nest.name,), "a sum of what the last places of an axis choose")
        )
        return (replace(nest, sections=sections),)

    def _unrolled(self, section: loop.Section, outer: Sequence[loop.Axis], names: Names) -> loop.Section:
        """The section with all choices at each point, if it has some and all that it does is to sum up."""
        sums = [s for s in section.statements if isinstance(s, loop.Reduce)]
        dtypes = {s.result: s.dtype for s in select((section,), loop.Load | loop.Compute | loop.IndexValue)}
        if len(dtypes) + len(sums) < len(section.statements) or any(
            one.reduction != "sum" or dtypes.get(getattr(one.operand, "name", "")) != one.dtype for one in sums
        ):
            return section
        for axis in section.axes:
            for count in {count for s in section.statements if 1 < (count := _choices(s, axis)) <= self.most}:
                if isinstance(axis.size, int) and axis.size % count == 0:
                    return _written_out(section, axis, count, outer, names) or section
        return section


def _choices(statement: loop.Statement, axis: loop.Axis) -> int:
    """How many last places of an axis a statement counts; 0 where it counts none."""
    match statement:
        case loop.IndexValue(index=loop.Index(0, (loop.Term(1, loop.ModAtom(place, int(count))),))):
            return count if place == ix.axis(axis.name) else 0
    return 0


def _written_out(
    section: loop.Section, axis: loop.Axis, count: int, outer: Sequence[loop.Axis], names: Names
) -> loop.Section | None:
    """The section at `count` points of an axis at a time; None where that settles no mask."""
    short = loop.Axis(axis.name, axis.size // count)
    sizes = {one.name: one.size for one in (*outer, *section.axes)} | {short.name: short.size}
    made, known, is_settled = Writer(names), dict[Any, str](), False
    terms: dict[str, list[loop.Operand]] = {}
    for place in range(count):
        meaning = {axis.name: loop.Index(place, (loop.Term(count, loop.AxisAtom(axis.name)),))}
        numbers, truths, values = dict[str, int](), dict[str, bool](), dict[str, str]()
        for statement in section.statements:
            moved = map_indices(statement, lambda index, at=meaning: ix.substitute(index, at, sizes))  # type: ignore[misc]
            _learn(moved, numbers, truths)
            simple = settled(moved, truths)
            assert simple is not None, "only a store may have nothing to do"
            is_settled |= isinstance(moved, loop.Load) and simple is not moved
            simple = rename(simple, values)
            if isinstance(simple, loop.Reduce):
                terms.setdefault(simple.results[0], []).append(simple.operand)
                continue
            (result,) = results(simple)
            key = rename(simple, {result: ""})
            if key not in known:
                known[key] = names("v")
                made.append(rename(simple, {result: known[key]}))
            values[result] = known[key]
    if not is_settled:
        return None
    for one in (s for s in section.statements if isinstance(s, loop.Reduce)):
        total, *rest = terms[one.results[0]]
        for term in rest:
            total = made.compute("add", total, term, dtype=one.dtype)
        made.append(replace(one, operand=total))
    axes = tuple(short if one is axis else one for one in section.axes)
    return loop.Section(axes, tuple(live_statements(made, lambda s: isinstance(s, loop.Reduce), set())))


def _learn(statement: loop.Statement, numbers: dict[str, int], truths: dict[str, bool]) -> None:
    """Note a value that is a number, and a comparison of one with a literal."""
    match statement:
        case loop.IndexValue(result, loop.Index(int(number), ())):
            numbers[result] = number
        case loop.Compute(result, op, (Ref(name), int(other))) if name in numbers and op in _COMPARE:
            truths[result] = _COMPARE[op](numbers[name], other)


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    op: getattr(operator, op) for op in ("lt", "le", "gt", "ge", "eq", "ne")
}
