"""Pass: on a GPU, a sum of what the last places of an axis choose among is written out for these."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from loopir.emitter import Typed
from loopir.passes.expand import Expander
from loopir.passes.split_nests import is_on_gpu, split_nests
from loopir.schedule import Names, Rewriting, Schedule
from stagewire import index as ix
from stagewire import loop
from stagewire.graph import Ref
from stagewire.statements import live_statements, select


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
        if not is_on_gpu(nest, state.buffers) or not any(_choice(section, self.most) for section in nest.sections):
            return None
        unroller = _Unroller(state.names, self.most)
        unrolled = unroller.nest(nest)
        if not unroller.settles_mask:
            return None
        state.decisions.append(
            loop.Decision("inlined", (nest.name,), "a sum of what the last places of an axis choose")
        )
        return (replace(unrolled, sections=tuple(map(_alive, unrolled.sections))),)


def _choice(section: loop.Section, most: int) -> tuple[loop.Axis, int] | None:
    """The axis whose last places a section chooses among, and how many of these; None for a section that does more than
    to sum up."""
    sums = [s for s in section.statements if isinstance(s, loop.Reduce)]
    dtypes = {s.result: s.dtype for s in select((section,), loop.Load | loop.Compute | loop.IndexValue)}
    if len(dtypes) + len(sums) < len(section.statements) or any(
        one.reduction != "sum" or dtypes.get(getattr(one.operand, "name", "")) != one.dtype for one in sums
    ):
        return None
    for axis in section.axes:
        for count in {count for s in section.statements if 1 < (count := _counted(s, axis)) <= most}:
            if isinstance(axis.size, int) and axis.size % count == 0:
                return axis, count
    return None


def _counted(statement: loop.Statement, axis: loop.Axis) -> int:
    """How many last places of an axis a statement counts; 0 where it counts none."""
    match statement:
        case loop.IndexValue(index=loop.Index(0, (loop.Term(1, loop.ModAtom(place, int(count))),))):
            return count if place == ix.axis(axis.name) else 0
    return 0


class _Unroller(Expander):
    """Rebuilds a nest with all choices of a section at each of its points.

    settles_mask: whether a mask of a load is true or false then.
    """

    def __init__(self, names: Names, most: int) -> None:
        super().__init__({}, names)
        self.most, self.settles_mask = most, False

    def _section(self, section: loop.Section, values: dict[str, Typed]) -> None:
        axis, count = _choice(section, self.most) or (None, 1)
        if axis is None:
            super()._section(section, values)
            return
        short = loop.Axis(axis.name, axis.size // count)
        self.emitter.open(tuple([short if one is axis else one for one in section.axes]))
        terms: dict[loop.Reduce, list[Typed]] = {}
        for place in range(count):
            at = {axis.name: loop.Index(place, (loop.Term(count, loop.AxisAtom(axis.name)),))}
            for statement in section.statements:
                if isinstance(statement, loop.Reduce) and isinstance(statement.operand, Ref):
                    terms.setdefault(statement, []).append(values[statement.operand.name])
                    continue
                self._statement(statement, values, at, True)
                if isinstance(statement, loop.Load) and statement.mask is not None:
                    self.settles_mask |= not isinstance(values[statement.mask.name].operand, Ref)
        for one, (total, *rest) in terms.items():
            for term in rest:
                total = self.emitter.compute("add", total, term)
            values.update(zip(one.results, self.emitter.reduce("sum", total.operand, one.dtype), strict=True))


def _alive(section: loop.Section) -> loop.Section:
    """A section without what only choices made that were not taken."""
    if not section.axes:
        return section
    kept = live_statements(section.statements, lambda s: isinstance(s, loop.Reduce | loop.Scan | loop.Store), set())
    return loop.Section(section.axes, tuple(kept))
