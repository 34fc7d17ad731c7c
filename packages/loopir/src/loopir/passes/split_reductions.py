"""Pass: on a GPU, a long reduction with few results becomes two, so that enough of it runs side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import repeat

from loopir.passes import split_nests as nests
from loopir.schedule import Rewriting, Schedule, Tail, substitute_axes
from stagewire import index as ix
from stagewire import loop
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.sizes import Hints, rough
from stagewire.statements import place_on, points_of, replace_values, select
from stagewire.types import DType

POSITIONS = frozenset({"argmax", "argmin"})
SPLITTABLE = frozenset({"sum", "prod", "max", "min", "any", "all", "xor_sum", "welford"}) | POSITIONS


@dataclass(frozen=True)
class SplitReductions:
    """Before: few outer points, each with a loop over many. After: a nest of partial results, parts of the loop being
    more outer axes, and a nest that combines them. Parts of welford combine by the parallel formula (Chan, Golub,
    LeVeque 1979), all tiles being of one size. Tiles of other reductions may have a masked tail.
    For a position each part keeps its best value, too; parts follow each other in the order of positions.

    Symbolic sizes are what the hints say; a long one is cut in a fixed number of parts, whose length is computed.

    CPUs split loops among their threads themselves.

    points: outer points that fill the machine, each being a row along memory.
    columns: the same where memory runs along the outer points, which are then handled many at a time, or along both,
        in tiles.
    row: loops that are no longer stay in one kernel with what follows them, where there are enough points for rows.
    long_row, parts: shorter rows in one piece of memory, and those of which fewer parts fill the machine, are read as
        fast whole: a second kernel takes longer than it saves (`benchmarks/split_rows.py`, on an H200).
    shortest, shortest_column: the least loop that is left to a part.
    """

    name = "split_reductions"
    points: int = 1024
    columns: int = 32768
    row: int = 1024
    long_row: int = 32768
    parts: int = 4
    shortest: int = 1024
    shortest_column: int = 128

    def run(self, schedule: Schedule) -> Schedule:
        return nests.split_nests(schedule, self._split)

    def _split(self, nest: loop.Kernel, state: Rewriting) -> tuple[loop.Kernel, loop.Kernel] | None:
        looped = [section for section in nest.sections if section.axes]
        if len(looped) != 1 or nest.sections[0] is not looped[0] or not nests.is_on_gpu(nest, state.buffers):
            return None
        reduces = [s for s in looped[0].statements if isinstance(s, loop.Reduce)]
        stores = any(isinstance(s, loop.Store | loop.Scan) for s in looped[0].statements)
        if stores or not reduces or any(r.reduction not in SPLITTABLE for r in reduces):
            return None
        if any(r.reduction in POSITIONS and not isinstance(r.operand, Ref) for r in reduces):
            return None
        ways = nests.ways_of(nest, looped[0], state.buffers)
        choice = self._choose(nest, looped[0], ways, _is_one_piece(nest, looped[0], state), state.hints)
        return None if choice is None else _halves(nest, reduces, choice, bool(ways.rows) and not ways.columns, state)

    def _choose(
        self, nest: loop.Kernel, section: loop.Section, ways: nests.Ways, in_one_piece: bool, hints: Hints
    ) -> tuple[nests.Tiling, ...] | None:
        """The inner axes in parts, if that is worth two kernels."""
        along_rows = bool(ways.rows) and not ways.columns
        points, shortest = (self.points, self.shortest) if along_rows else (self.columns, self.shortest_column)
        whole = points_of(nest.axes)
        outer, inner = rough(whole, hints), rough(points_of(section.axes), hints)
        if not 0 < outer < points or (outer >= self.points and inner <= self.row):
            return None
        if along_rows and in_one_piece and (inner < self.long_row or points // outer < self.parts):
            return None
        if not along_rows and isinstance(whole, int) and whole % 2:
            points *= 4  # elements of halves are then loaded one by one, and none ahead
        wanted = min(points // outer if along_rows else -(-points // outer), inner // shortest)
        if wanted < 2:
            return None
        may_have_tail, axes = nests.allows_masked_tail(section), _axes_to_cut(section)
        long = 1 if not may_have_tail else shortest if along_rows else math.inf
        last = ways.rows if ways.columns else frozenset()
        cuts = _cuts(axes, wanted, hints, long, last)
        if not along_rows and 4 * _parts(cuts) < 3 * wanted:
            cuts = _cuts(axes, 2 * wanted, hints, long, last)  # better a few programs more than machines that wait
        if _leaves_loop(section, cuts) and (2 * _parts(cuts) >= wanted or _parts(cuts) >= 8):
            return cuts
        longest = max(axes, key=lambda axis: rough(axis.size, hints))
        if not may_have_tail or 2 * min(wanted, rough(longest.size, hints)) < wanted:
            return None
        cut = nests.tile_with_tail(longest, wanted, hints)
        return (cut,) if cut.length != 1 else None


def _is_one_piece(nest: loop.Kernel, section: loop.Section, state: Rewriting) -> bool:
    """Whether each row that is read lies in memory in one piece (not the channels of a group, channels last)."""
    outer = {axis.name for axis in nest.axes}
    for load in select((section,), loop.Load):
        steps = ix.steps(ix.linear(load.index, state.buffers[load.buffer].type.stride))
        length = 1
        inner = [axis for axis in section.axes if axis.name in steps] if outer & steps.keys() else []
        for axis in sorted(inner, key=lambda axis: rough(steps[axis.name], state.hints)):
            if rough(steps[axis.name], state.hints) != length:
                return False
            length *= rough(axis.size, state.hints)
    return True


def _axes_to_cut(section: loop.Section) -> tuple[loop.Axis, ...]:
    """The axes that may be cut: the slowest alone where positions are wanted."""
    if not any(isinstance(s, loop.Reduce) and s.reduction in POSITIONS for s in section.statements):
        return section.axes
    return tuple([axis for axis in section.axes if axis.size != 1][:1]) or section.axes[:1]


def _leaves_loop(section: loop.Section, cuts: tuple[nests.Tiling, ...]) -> bool:
    """Whether there are parts, and not each point is one of its own: a reduction is one of a loop."""
    gone = {cut.axis for cut in cuts if cut.length == 1}
    return bool(cuts) and any(axis.size != 1 for axis in section.axes if axis not in gone)


def _parts(cuts: tuple[nests.Tiling, ...]) -> int:
    return math.prod(cut.about for cut in cuts)


def _cuts(
    axes: tuple[loop.Axis, ...], wanted: int, hints: Hints, long: float, last: frozenset[str] = frozenset()
) -> tuple[nests.Tiling, ...]:
    """Axes in parts, so that there are about as many as wanted: as few axes as do it. A symbolic axis that is somewhat
    too long may be taken as a whole where others of so many points are left. last: those that are cut if others do not
    do it."""
    if last and any(axis.name not in last for axis in axes):
        cuts = _cuts(tuple([axis for axis in axes if axis.name not in last]), wanted, hints, long)
        if 2 * _parts(cuts) >= wanted:
            return cuts
        rest = tuple([axis for axis in axes if axis.name in last])
        return (*cuts, *_cuts(rest, wanted // _parts(cuts), hints, long))
    cuts: list[nests.Tiling] = []
    count, left = 1, list(axes)
    while left and (not cuts or 2 * count < wanted):
        most = wanted // count
        points = math.prod(rough(axis.size, hints) for axis in left)
        bounds = [nests.MOST_TILES_IN_ONE * most if points >= long * rough(axis.size, hints) else None for axis in left]
        cut = max(map(nests.tile_evenly, left, repeat(most), repeat(hints), bounds), key=lambda cut: cut.about)
        if cut.about < 2:
            break
        cuts.append(cut)
        left.remove(cut.axis)
        count *= cut.about
    return tuple(cuts)


def _halves(nest: loop.Kernel, reduces: list[loop.Reduce], cuts: tuple[nests.Tiling, ...], along_rows: bool,
            state: Rewriting) -> tuple[loop.Kernel, loop.Kernel]:  # fmt: skip
    """The nest of the parts and the nest that combines them; the parts lie as the operand does."""
    names = state.names
    many = tuple(loop.Axis(names("a"), cut.parts) for cut in cuts)
    first = _over_parts(nest, cuts, many, state)
    total, parts = points_of(first.axes), points_of(many)
    part = many[0] if len(many) == 1 else loop.Axis(names("a"), parts)
    axes = (*nest.axes, *many) if along_rows else (*many, *nest.axes)
    kept = (*nest.axes, part) if along_rows else (part, *nest.axes)
    again = {a.name: loop.Axis(names("a"), a.size) for a in kept}
    place = {part.name: ix.row_major(many)}
    at = tuple([place.get(axis.name, ix.axis(axis.name)) for axis in kept])
    stores, combining, after = list[loop.Statement](), nests.Writer(names), nests.Writer(names)
    values: dict[str, loop.Operand] = {}
    shape = tuple(axis.size for axis in kept)
    for reduce in reduces:
        if reduce.reduction in POSITIONS:
            best, written, found, winner = _best(reduce, first, kept, again, state, nest)
            first = loop.Section(first.axes, (*first.statements, best))
            stores += written
            combining += found
            after.append(winner)
            values[reduce.results[0]] = Ref(winner.result)
            continue
        partial = [state.add_buffer(nest, f"part_{name}", reduce.dtype, shape) for name in reduce.results]
        stores += [loop.Store(b, at, Ref(v)) for b, v in zip(partial, reduce.results, strict=True)]
        loads = [loop.Load(names("v"), b, place_on(again.values()), reduce.dtype) for b in partial]
        _combine(reduce, loads, (total, parts), (combining, after), values)
    renamed = {old: ix.axis(new.name) for old, new in again.items() if old != part.name}
    tail = substitute_axes(
        loop.Kernel(nest.name, nest.axes, nest.sections[1:]), renamed, {old: (again[old],) for old in renamed}
    )
    sections = [loop.Section((), tuple(after))] if after else []
    sections += [loop.Section(b.axes, tuple(replace_values(s, values) for s in b.statements)) for b in tail.sections]
    state.decisions.append(
        loop.Decision("refused", (nest.name,), f"too few results for a GPU: made of {parts} parts each")
    )
    whole = loop.Section((again[part.name],), tuple(combining))
    return (
        loop.Kernel(f"{nest.name}_parts", axes, (first, loop.Section((), tuple(stores))), nest.origins, nest.line),
        loop.Kernel(nest.name, tail.axes, (whole, *sections), nest.origins, nest.line),
    )


def _over_parts(
    nest: loop.Kernel, cuts: tuple[nests.Tiling, ...], many: tuple[loop.Axis, ...], state: Rewriting
) -> loop.Section:
    """The loop of the nest in one part of each axis that is cut."""
    places: dict[str, loop.Index] = {}
    left: dict[str, tuple[loop.Axis, ...]] = {}
    for cut, part in zip(cuts, many, strict=True):
        # an axis of one point would hide from later passes that accesses correspond
        rest = None if cut.length == 1 else loop.Axis(state.names("a"), cut.length)
        places[cut.axis.name], left[cut.axis.name] = cut.place(part, rest), (rest,) if rest is not None else ()
    section = substitute_axes(nest, places, left).sections[0]
    tails = [
        Tail(part, left[cut.axis.name][0], cut.axis.size) for cut, part in zip(cuts, many, strict=True) if cut.has_tail
    ]
    return nests.masked(section, tails, state) if tails else section


def _best(
    reduce: loop.Reduce, first: loop.Section, axes: tuple[loop.Axis, ...], again: dict[str, loop.Axis],
    state: Rewriting, nest: loop.Kernel,
) -> tuple[loop.Reduce, list[loop.Statement], list[loop.Statement], loop.Load]:  # fmt: skip
    """For a position in a nest of parts: the value there, statements that store both; in the nest that combines the
    parts, the first part with the best value, and the read of its position."""
    names, shape = state.names, tuple(axis.size for axis in axes)
    (part,) = (axis for axis in axes if axis not in nest.axes)
    inside = next(s for s in first.statements if isinstance(s, loop.Reduce) and s.results == reduce.results)
    dtype = next(s.dtype for s in first.statements if Ref(getattr(s, "result", "")) == inside.operand)  # type: ignore[union-attr]
    value, kept, found = names("v"), nests.Writer(names), nests.Writer(names)
    values, places = (
        state.add_buffer(nest, f"{what}_{value}", kind, shape) for what, kind in (("best", dtype), ("place", "int64"))
    )
    at = place_on(axes)
    start = kept.add(loop.IndexValue, ix.scale(ix.axis(part.name), points_of(first.axes)))
    place = kept.compute("add", Ref(reduce.results[0]), start, dtype="int64")
    kept += [loop.Store(values, at, Ref(value)), loop.Store(places, at, place)]
    read = found.add(loop.Load, values, tuple(ix.axis(again[axis.name].name) for axis in axes), dtype)
    winner = found.reduce(reduce.reduction, read, "int64").name
    chosen = tuple(ix.value(winner) if axis is part else ix.axis(again[axis.name].name) for axis in axes)
    best = loop.Reduce((value,), "max" if reduce.reduction == "argmax" else "min", inside.operand, dtype)
    return best, kept, found, loop.Load(names("v"), places, chosen, "int64")


def _combine(
    reduce: loop.Reduce, loads: list[loop.Load], counts: tuple[Dim, Dim], where: tuple[nests.Writer, nests.Writer],
    values: dict[str, loop.Operand],
) -> None:  # fmt: skip
    """Statements that combine the parts of one reduction; `values` maps its old results to the new.

    counts: the points of a part, and how many parts there are.
    """
    combining, after = where
    count, parts = counts
    dtype = reduce.dtype
    if reduce.reduction != "welford":
        combining.append(loads[0])
        values[reduce.results[0]] = combining.reduce(reduce.reduction, Ref(loads[0].result), dtype)
        return
    mean, squares, _ = loads
    combining += [mean, squares]
    whole, apart, unused = (combining.names("v") for _ in range(3))
    combining.append(loop.Reduce((whole, apart, unused), "welford", Ref(mean.result), dtype))
    within = combining.reduce("sum", Ref(squares.result), dtype)
    spread = after.compute("mul", Ref(apart), _number(count, dtype, after), dtype=dtype)
    total = after.compute("add", within, spread, dtype=dtype)
    number = after.compute("convert", _number(count * parts, dtype, after), dtype=dtype)
    values.update(zip(reduce.results, (Ref(whole), total, number), strict=True))


def _number(count: Dim, dtype: DType, made: nests.Writer) -> loop.Operand:
    """A count in a dtype; made: where what is symbolic is computed."""
    if isinstance(count, int):
        return float(count)
    return made.compute("convert", made.add(loop.IndexValue, ix.constant(count)), dtype=dtype)
