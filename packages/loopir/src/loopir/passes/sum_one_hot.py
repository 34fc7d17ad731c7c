"""Pass: a sum in which one term at most is not zero, by its position, is that term."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from loopir.passes.split_nests import Writer, split_nests
from loopir.schedule import Names, Rewriting, Schedule
from stagewire import index as ix
from stagewire import loop
from stagewire.graph import Ref
from stagewire.statements import axes_of_values, makers, rename, results, used_values
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
    if len(section.axes) != 1:
        return None
    sums = [s for s in section.statements if isinstance(s, loop.Reduce) and s.reduction == "sum"]
    ends = {s: made for s in sums if (made := _term(section, s, names)) is not None}
    if not ends:
        return None
    hoisted = makers(section.statements, {name for made in ends.values() for s in made for name in used_values(s)})
    sinks = [s for s in section.statements if isinstance(s, loop.Reduce | loop.Scan | loop.Store) and s not in ends]
    left = makers(section.statements, {name for s in sinks for name in used_values(s)})
    kept = tuple(s for s in section.statements if s in sinks or (s in left and s not in hoisted))
    first = loop.Section((), (*hoisted, *(s for made in ends.values() for s in made)))
    return (first, loop.Section(section.axes, kept)) if kept else (first,)


def _term(section: loop.Section, reduce: loop.Reduce, names: Names) -> list[loop.Statement] | None:
    """What makes the result of a sum at once: what makes a term, with 0 <= k < size in the place of i == k."""
    (axis,) = section.axes
    chain = makers(section.statements, {reduce.operand.name}) if isinstance(reduce.operand, Ref) else []
    hit = _hit(reduce.operand, {name: s for s in chain for name in results(s)}, ix.axis(axis.name))
    if hit is None or any(isinstance(s, loop.Scan) for s in chain):
        return None
    equal, place, dtype = hit
    along = axes_of_values([s for s in chain if s is not equal])
    if any(axis.name in along.get(one.name, ()) for one in (reduce.operand, place)):  # type: ignore[union-attr]
        return None
    made = Writer(names)
    size = made.add(loop.IndexValue, loop.Index(axis.size), dtype)
    inside = made.compute("logical_and", made.compute("ge", place, 0), made.compute("lt", place, size))
    again = {equal.result: inside.name}
    for statement in chain:
        if statement is not equal and not used_values(statement).isdisjoint(again):
            again |= {name: names("v") for name in results(statement)}
            made.append(rename(statement, again))
    made.append(loop.Compute(reduce.results[0], "convert", (Ref(again[reduce.operand.name]),), reduce.dtype))  # type: ignore
    return made


def _hit(
    operand: loop.Operand, made: dict[str, loop.Statement], position: loop.Index
) -> tuple[loop.Compute, Ref, DType] | None:
    """The comparison of a position with a value, and these, where the operand is 0 unless it holds; `made` makes it."""
    one = made.get(getattr(operand, "name", ""))
    while isinstance(one, loop.Compute) and one.op == "convert":  # zero stays zero
        one = made.get(getattr(one.operands[0], "name", ""))
    match one:
        case loop.Compute(_, "where", (condition, _, other)) if other == 0 and other is not True:
            open_ = [condition]
        case _:
            return None
    while open_:
        match made.get(getattr(open_.pop(), "name", "")):
            case loop.Compute(_, "logical_and", both):
                open_ += both
            case loop.Compute(_, "eq", (Ref(a), Ref(b))) as equal:
                for counts, place in ((made.get(a), b), (made.get(b), a)):
                    if isinstance(counts, loop.IndexValue) and counts.index == position:
                        return equal, Ref(place), counts.dtype
    return None
