"""Pass: on a GPU, a long scan of few columns becomes three nests, so that enough of it runs side by side.

(Long rows are shared by the programs of one kernel, which the code generator writes.)
"""

from __future__ import annotations

from dataclasses import dataclass

from loopir.passes import split_nests as nests
from loopir.schedule import Names, Rewriting, Schedule, Tail, substitute_axes
from stagewire import index as ix
from stagewire import loop
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.sizes import NO_HINTS, Hints, rough
from stagewire.statements import makers, place_on, points_of, rename, replace_values, results
from stagewire.types import ITEM_SIZE

COMBINE: dict[loop.ScanKind, str] = {"sum": "add", "prod": "mul"}
NEUTRAL: dict[loop.ScanKind, float] = {"sum": 0, "prod": 1}

FEW_COLUMNS = 3072
"""Columns that leave a large GPU idle."""

WIDTH = 256 * 1024
"""Bytes of a row of columns, or of their parts, that are enough threads to read each column point by point."""

SHORTEST, LEAST_PARTS = 256, 4
"""Points of a part, and parts of a column."""


def parts_of(size: Dim, outer: Dim, hints: Hints = NO_HINTS, narrowest: int = 4) -> int:
    """Into how many parts to cut each column; 1 where that does not pay. The parts of a number are of one size.

    narrowest: the least bytes of an element that is read.
    """
    length, columns = rough(size, hints), rough(outer, hints)
    if not 0 < columns < FEW_COLUMNS:
        return 1
    wanted = max(1, min(-(-WIDTH // narrowest // columns), length // SHORTEST))
    found = nests.divisor(size, wanted) if isinstance(size, int) else wanted
    if 2 * found < wanted:
        found = wanted
    return found if found >= LEAST_PARTS else 1


@dataclass(frozen=True)
class SplitScans:
    """Before: few columns, each with a running sum or product. After: a nest that combines each part of a column, one
    that scans these, and one that scans each part from where the part before ended. What is scanned is read twice.
    """

    name = "split_scans"

    def run(self, schedule: Schedule) -> Schedule:
        return nests.split_nests(schedule, _split)


def _split(nest: loop.Kernel, state: Rewriting) -> tuple[loop.Kernel, loop.Kernel, loop.Kernel] | None:
    if len(nest.sections) != 1 or len(nest.sections[0].axes) != 1 or not nests.is_on_gpu(nest, state.buffers):
        return None
    (section,) = nest.sections
    scans = [s for s in section.statements if isinstance(s, loop.Scan)]
    if len(scans) != 1 or scans[0].scan not in COMBINE or any(isinstance(s, loop.Reduce) for s in section.statements):
        return None
    if nests.ways_of(nest, section, state.buffers).rows:
        return None
    narrowest = min((ITEM_SIZE[s.dtype] for s in section.statements if isinstance(s, loop.Load)), default=4)
    parts = parts_of(section.axes[0].size, points_of(nest.axes), state.hints, narrowest)
    cut = _cut_of(section.axes[0], parts, state.hints)
    if parts == 1 or (cut.has_tail and not nests.allows_masked_tail(section)):
        return None
    (scan,) = scans
    reason = f"too few columns for a GPU: each is scanned in {parts} parts"
    state.decisions.append(loop.Decision("refused", (nest.name,), reason))
    shape = (parts, *(axis.size for axis in nest.axes))
    totals, sums = (state.add_buffer(nest, suffix, scan.dtype, shape) for suffix in ("totals", "sums"))
    return (
        _totals(nest, scan, cut, totals, state),
        _sums(nest, scan, cut, (totals, sums), state.names),
        _rest(nest, scan, cut, sums, state),
    )


def _cut_of(long: loop.Axis, parts: int, hints: Hints) -> nests.Tiling:
    if isinstance(long.size, int) and long.size % parts == 0:
        return nests.Tiling(long, parts, long.size // parts, parts)
    return nests.tile_with_tail(long, parts, hints)


def _over_parts(
    nest: loop.Kernel, cut: nests.Tiling, names: Names
) -> tuple[loop.Kernel, tuple[loop.Axis, ...], loop.Axis]:
    """The nest over axes of its own, its loop cut in parts; the axis of the parts with the outer ones, and which it
    is."""
    outer = {axis.name: loop.Axis(names("a"), axis.size) for axis in nest.axes}
    part, rest = loop.Axis(names("a"), cut.parts), loop.Axis(names("a"), cut.length)
    places = {old: ix.axis(new.name) for old, new in outer.items()}
    places[cut.axis.name] = cut.place(part, rest)
    replaced = {old: (new,) for old, new in outer.items()} | {cut.axis.name: (rest,)}
    return substitute_axes(nest, places, replaced), (part, *outer.values()), part


def _inside(section: loop.Section, cut: nests.Tiling, part: loop.Axis, state: Rewriting) -> loop.Section:
    """The loop over a part, which does nothing behind the end of the column."""
    return nests.masked(section, [Tail(part, section.axes[0], cut.axis.size)], state) if cut.has_tail else section


def _totals(nest: loop.Kernel, scan: loop.Scan, cut: nests.Tiling, totals: str, state: Rewriting) -> loop.Kernel:
    """What each part comes to."""
    names = state.names
    over, axes, part = _over_parts(nest, cut, names)
    (section,) = over.sections
    needed = {scan.operand.name} if isinstance(scan.operand, Ref) else set[str]()
    kept = makers(section.statements, needed)
    values = {name: names("v") for s in reversed(kept) for name in results(s)}
    renamed = [rename(s, values) for s in kept]
    operand = Ref(values[scan.operand.name]) if isinstance(scan.operand, Ref) else scan.operand
    made = nests.Writer(names, renamed)
    total = made.reduce(scan.scan, operand, scan.dtype)  # type: ignore[arg-type]
    inner = _inside(loop.Section(section.axes, tuple(made)), cut, part, state)
    sections = (inner, loop.Section((), (loop.Store(totals, place_on(axes), total),)))
    return loop.Kernel(f"{nest.name}_totals", axes, sections, nest.origins, nest.line)


def _sums(nest: loop.Kernel, scan: loop.Scan, cut: nests.Tiling, buffers: tuple[str, str], names: Names) -> loop.Kernel:
    """What each part and those before it come to."""
    outer = tuple(loop.Axis(names("a"), axis.size) for axis in nest.axes)
    part = loop.Axis(names("a"), cut.parts)
    place, made = place_on((part, *outer)), nests.Writer(names)
    found = made.add(loop.Scan, scan.scan, made.add(loop.Load, buffers[0], place, scan.dtype), scan.dtype)
    made.append(loop.Store(buffers[1], place, found))
    return loop.Kernel(f"{nest.name}_sums", outer, (loop.Section((part,), tuple(made)),), nest.origins, nest.line)


def _rest(nest: loop.Kernel, scan: loop.Scan, cut: nests.Tiling, sums: str, state: Rewriting) -> loop.Kernel:
    """Each part, from where the one before it ended."""
    names = state.names
    over, axes, part = _over_parts(nest, cut, names)
    section = _inside(over.sections[0], cut, part, state)
    place = tuple(ix.shift(ix.axis(axis.name), -1 if axis is part else 0) for axis in axes)
    start, made = nests.Writer(names), nests.Writer(names)
    inside = start.compute("gt", start.add(loop.IndexValue, ix.axis(part.name)), 0)
    before = start.add(loop.Load, sums, place, scan.dtype, inside, NEUTRAL[scan.scan])
    values: dict[str, loop.Operand] = {}
    for statement in section.statements:
        made.append(replace_values(statement, values))
        if isinstance(statement, loop.Scan) and statement.result == scan.result:
            values[scan.result] = made.compute(COMBINE[scan.scan], before, Ref(scan.result), dtype=scan.dtype)
    sections = (loop.Section((), tuple(start)), loop.Section(section.axes, tuple(made)))
    return loop.Kernel(nest.name, axes, sections, nest.origins, nest.line)
