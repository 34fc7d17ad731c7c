"""Pass: a sum in which one term at most is not zero, by its position, is that term."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from loopir.passes.split_nests import Writer, split_nests
from loopir.schedule import Names, Rewriting, Schedule
from stagewire import loop
from stagewire.graph import Ref
from stagewire.statements import makers, results, used_axes, used_values
from stagewire.types import DType


@dataclass(frozen=True)
class SumOneHot:
    """Before: the sum over i of where(i == k & more, term, 0), k, more and term being the same for all i: what the
    gradient of a loss by classes sums up in its log_softmax. After: where(0 <= k < size & more, term, 0) and no loop.
    Exact, but that a sum of -0.0 and zeros was 0.0.
    """

    name = "sum_one_hot"

    def run(self, schedule: Schedule) -> Schedule:
        return split_nests(schedule, _split_nest)


def _split_nest(nest: loop.Kernel, state: Rewriting) -> tuple[loop.Kernel]:
    changed = _without_sums(nest, state.names)
    if changed is not nest:
        state.decisions.append(loop.Decision("inlined", (nest.name,), "a sum of which one term at most is not zero"))
    return (changed,)


def _without_sums(nest: loop.Kernel, names: Names) -> loop.Kernel:
    sections: list[loop.Section] = []
    for section in nest.sections:
        found = _split(section, names)
        if found is None and sections and not section.axes and not sections[-1].axes:
            sections[-1] = loop.Section((), sections[-1].statements + section.statements)  # of sums that were loops
        else:
            sections.extend(found or (section,))
    return nest if tuple(sections) == nest.sections else replace(nest, sections=tuple(sections))


def _split(section: loop.Section, names: Names) -> tuple[loop.Section, ...] | None:
    """What is the same for all points of the section with the sums that are one term, and the rest."""
    if len(section.axes) != 1 or not any(
        isinstance(s, loop.Reduce) and s.reduction == "sum" for s in section.statements
    ):
        return None
    found = _Terms(section, names)
    ends = {s: made for s in section.statements if isinstance(s, loop.Reduce) and (made := found.sum(s)) is not None}
    if not ends:
        return None
    hoisted = makers(section.statements, {name for made in ends.values() for s in made for name in used_values(s)})
    sinks = [s for s in section.statements if isinstance(s, loop.Reduce | loop.Scan | loop.Store) and s not in ends]
    left = makers(section.statements, {name for s in sinks for name in used_values(s)})
    kept = tuple(s for s in section.statements if s in sinks or (s in left and s not in hoisted))
    first = loop.Section((), (*hoisted, *(s for made in ends.values() for s in made)))
    return (first, loop.Section(section.axes, kept)) if kept else (first,)


class _Terms:
    """The values of a section with one axis, and which of them change along it."""

    def __init__(self, section: loop.Section, names: Names) -> None:
        self.names = names
        (self.axis,) = section.axes
        self.made: dict[str, loop.Statement] = {}
        self.changing: set[str] = set()
        for statement in section.statements:
            names = results(statement)
            self.made.update(dict.fromkeys(names, statement))
            scans = isinstance(statement, loop.Scan | loop.Reduce)
            if scans or self.axis.name in used_axes(statement) or self.changing & used_values(statement):
                self.changing.update(names)

    def is_same(self, operand: loop.Operand) -> bool:
        """Whether an operand is the same for all points."""
        return not isinstance(operand, Ref) or operand.name not in self.changing

    def sum(self, reduce: loop.Reduce) -> tuple[loop.Statement, ...] | None:
        """Statements that give the result of a sum at once."""
        if reduce.reduction != "sum":
            return None
        value, converted = self._behind_conversions(reduce.operand)
        chosen = self._compute(value, "where")
        if chosen is None:
            return None
        condition, term, other = chosen.operands
        place = self._place(condition)
        if place is None or other is True or other != 0 or isinstance(other, Ref) or not self.is_same(term):
            return None
        return self._term(reduce, place, (term, other), (chosen.dtype, *converted))

    def _compute(self, operand: loop.Operand, op: str) -> loop.Compute | None:
        made = self.made.get(operand.name) if isinstance(operand, Ref) else None
        return made if isinstance(made, loop.Compute) and made.op == op else None

    def _behind_conversions(self, operand: loop.Operand) -> tuple[loop.Operand, tuple[DType, ...]]:
        """A value, and the dtypes to which it is converted one after the other: zero stays zero."""
        dtypes: list[DType] = []
        while (made := self._compute(operand, "convert")) is not None:
            dtypes.insert(0, made.dtype)
            operand = made.operands[0]
        return operand, tuple(dtypes)

    def _place(self, condition: loop.Operand) -> tuple[Ref, DType, tuple[loop.Operand, ...]] | None:
        """The position at which a condition may hold, its dtype, and what must hold beside."""
        both = self._compute(condition, "logical_and")
        if both is not None:
            a, b = both.operands
            for one, more in ((a, b), (b, a)):
                found = self._place(one) if self.is_same(more) else None
                if found is not None:
                    return found[0], found[1], (*found[2], more)
            return None
        equal = self._compute(condition, "eq")
        if equal is None:
            return None
        a, b = equal.operands
        for one, place in ((a, b), (b, a)):
            counts = self.made.get(one.name) if isinstance(one, Ref) else None
            plain = isinstance(counts, loop.IndexValue) and counts.index == loop.Index(
                0, (loop.Term(1, loop.AxisAtom(self.axis.name)),)
            )
            if plain and isinstance(place, Ref) and self.is_same(place):
                return place, counts.dtype, ()  # type: ignore[union-attr]
        return None

    def _term(
        self,
        reduce: loop.Reduce,
        place: tuple[Ref, DType, tuple[loop.Operand, ...]],
        values: tuple[loop.Operand, loop.Operand],
        dtypes: tuple[DType, ...],
    ) -> tuple[loop.Statement, ...]:
        """The sum: the first of the values where the position is inside, else the other."""
        position, dtype, more = place
        made = Writer(self.names)
        size = made.add(loop.IndexValue, loop.Index(self.axis.size), dtype)
        holds = made.compute("logical_and", made.compute("ge", position, 0), made.compute("lt", position, size))
        for condition in more:
            holds = made.compute("logical_and", holds, condition)
        value = made.compute("where", holds, *values, dtype=dtypes[0])
        for to in (*dtypes[1:], reduce.dtype):
            value = made.compute("convert", value, dtype=to)
        last = made.pop()
        return (*made, replace(last, result=reduce.results[0]))
