"""Pass: on a GPU, sums over all rows are made by the kernel that reads the rows one by one anyway."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from loopir.passes.dependence import Dependences
from loopir.passes.merge_nests import GPU_LIMITS, Sections, merge, part_of
from loopir.passes.split_nests import is_on_gpu, unmasked
from loopir.schedule import Item, Rewriting, Schedule, Tail, axis_sizes, output_names, substitute_axes
from stagewire import index as ix
from stagewire.expr import Dim, greatest
from stagewire.graph import Ref
from stagewire.loop import Axis, Buffer, Decision, Index, Kernel, Load, Reduce, Scan, Section, Statement, Store
from stagewire.sizes import Hints, estimate, rough
from stagewire.statements import map_indices, points_of, reads_of, select, statements_of, used_axes, writes_of
from stagewire.types import ITEM_SIZE, bytes_of, contiguous, numel

TOGETHER = 4
"""The rows of a part are a multiple of so many, which may be worked on at once."""


@dataclass(frozen=True)
class SumOverRows:
    """Before: a nest that works on rows, one by one, and nests that sum over the rows what it reads or writes, in parts
    (the gradients of the operand of a norm, of its weight, of what was added before it). After: one nest over the rows,
    which also stores the sums of each part of so many rows. One nest combines the parts of all sums, as many as there
    are now.

    Symbolic sizes are what the hints say; the last part may have fewer rows.

    longest: elements of a row at most; open: of one of symbolic length. held: of the sums of a part. registers: bytes
    of these and of what several loops read of a row. programs: parts at most; least: and at least. rows: of a part at
    least, and sums: elements of all parts at most, so that they are little beside what is read.
    """

    name = "sum_over_rows"
    longest: int = 16384
    open: int = 4096
    held: int = 32768
    registers: int = 200 * 1024
    programs: int = 528
    least: int = 96
    rows: int = 16
    sums: int = 1 << 21

    def rows_of_a_part(self, count: Dim, width: int, hints: Hints) -> Dim | None:
        """How many of so many rows a part has; None where there is no good number."""
        about = rough(count, hints)
        most = min(self.programs, about // self.rows, self.sums // width)
        if most < self.least:
            return None
        return greatest((count + (most * TOGETHER - 1)) // (most * TOGETHER), 1) * TOGETHER

    def run(self, schedule: Schedule) -> Schedule:
        state = _State(schedule, self)
        for number, item in enumerate(schedule.items):
            if isinstance(item, Kernel) and _is_of_sums(item) and is_on_gpu(item, schedule.buffers):
                state.place(number, _over_whole_axes(item, schedule.tails))
        order = state.dependences.order()
        return state.with_items([state.items[group] for group in order]) if state.decisions else schedule


class _State(Rewriting):
    """made: by the item that they are in now, the nest of rows and the nests of sums that one was made of.

    touching: the items that read or write a buffer.
    """

    def __init__(self, schedule: Schedule, options: SumOverRows) -> None:
        super().__init__(schedule)
        self.options = options
        self.items: dict[int, Item] = dict(enumerate(schedule.items))
        self.dependences = Dependences(schedule)
        self.made: dict[int, tuple[Kernel, list[Kernel]]] = {}
        self.touching: dict[str, list[int]] = {}
        for number, item in self.items.items():
            for name in {*reads_of(item), *writes_of(item)}:
                self.touching.setdefault(name, []).append(number)

    def place(self, number: int, sums: Kernel) -> None:
        """Put the sums into a nest of rows, if one reads or writes the same."""
        for other in self.partners(number, sums):
            item = self.items[other]
            assert isinstance(item, Kernel)
            rows, before = self.made.get(other, (item, []))
            if self.dependences.may_merge(other, number):
                merged = self.merged(rows, [*before, sums])
                if merged is not None:
                    group = self.join(other, number, merged)
                    self.made[group] = rows, [*before, sums]
                    self.combine_together(before, sums)
                    self.decisions.append(Decision("fused", (rows.name, sums.name), "sums over the rows at hand"))
                    return

    def join(self, one: int, other: int, nest: Kernel) -> int:
        """Put a nest in the place of two items; which it is."""
        first, second = (other, one) if self.dependences.precedes(other, one) else (one, other)
        self.dependences.merge(first, second)
        self.items[first] = nest
        return first

    def partners(self, number: int, sums: Kernel) -> list[int]:
        """Nests of rows that have at least half of what the sums read, those that have most of it first."""
        sizes = {name: self.bytes_of(name) for name in dict.fromkeys(reads_of(sums))}
        found: list[tuple[int, int]] = []
        touching = {self.dependences.find(item) for name in sizes for item in self.touching.get(name, ())}
        for other in touching - {number}:
            rows = self.made[other][0] if other in self.made else self.items[other]
            if isinstance(rows, Kernel):
                shared = sum(sizes[name] for name in {*reads_of(rows), *writes_of(rows)} & sizes.keys())
                if 2 * shared >= sum(sizes.values()) and self.is_of_rows(rows):
                    found.append((-shared, other))
        return [other for _, other in sorted(found)]

    def readers(self, names: set[str]) -> list[int]:
        """The items that read any of these buffers now."""
        touching = {self.dependences.find(item) for name in names for item in self.touching.get(name, ())}
        return sorted([item for item in touching if not names.isdisjoint(reads_of(self.items[item]))])

    def bytes_of(self, name: str) -> int:
        return self.rough(bytes_of(self.buffers[name].type))

    def rough(self, size: Dim) -> int:
        return rough(size, self.schedule.hints)

    def is_of_rows(self, nest: Kernel) -> bool:
        """Whether each outer point of a nest is a row, which is as long in each of its loops."""
        loops = [section.axes for section in nest.sections if section.axes]
        if not nest.axes or not loops or select(nest.sections, Scan):
            return False
        length = loops[0][0].size
        if not all(len(axes) == 1 and axes[0].size == length for axes in loops):
            return False
        longest = self.options.longest if isinstance(length, int) else self.options.open
        return 0 < self.rough(length) <= longest and all(s.mode == "set" for s in _writes(nest))

    def merged(self, rows: Kernel, sums: list[Kernel]) -> Kernel | None:
        """One nest of all; None where they do not fit."""
        count, inner = points_of(rows.axes), _looped(rows)[0]
        width = self.rough(inner.size)
        length = self.options.rows_of_a_part(count, width, self.schedule.hints)
        stored = sum(len(_writes(nest)) for nest in sums)
        kept = (ITEM_SIZE["float32"] * stored + self.read_again(rows, self.rough(count) * width)) * width
        if length is None or stored * width > self.options.held or kept > self.options.registers:
            return None
        rows = _renamed(rows, {axis.name: ix.axis(inner.name) for axis in _looped(rows)}, inner)
        row = Axis(self.names("a"), count)
        sizes = {**axis_sizes(rows), row.name: count}
        found = ix.delinear(ix.axis(row.name), [axis.size for axis in rows.axes], sizes)
        ways = {axis.name: place for axis, place in zip(rows.axes, found, strict=True)}
        gone = {axis.name: () for axis in rows.axes} | {rows.axes[0].name: (row,)}
        sections = Sections(substitute_axes(rows, ways, gone).sections)
        at = (ix.floor_div(ix.axis(row.name), length, sizes), ix.axis(inner.name))
        for nest in sums:
            places = _places(rows, nest, inner, self.buffers)
            if places is None:
                return None
            loop = [
                map_indices(s, partial(ix.substitute, mapping=places, sizes=sizes)) for s in nest.sections[0].statements
            ]
            if not _reads_at_its_point(loop, rows):
                return None
            stores = {s.value.name: s.buffer for s in _writes(nest) if isinstance(s.value, Ref)}
            statements = [
                Store(stores[s.results[0]], at, s.operand, "sum")
                if isinstance(s, Reduce)
                else map_indices(s, partial(ix.substitute, mapping=ways, sizes=sizes))
                for s in loop
            ]
            sections.add(Section((inner,), tuple(statements)))
        if not self.resize({s.buffer for s in _writes(sums[-1])}, (count + (length - 1)) // length):
            return None
        origins = tuple([name for nest in (rows, *sums) for name in nest.origins])
        return Kernel(rows.name, (row,), sections.result(), origins, rows.line)

    def read_again(self, rows: Kernel, size: int) -> int:
        """The bytes of an element of a row that more than one loop reads, of buffers of so many elements."""
        readers = Counter(
            name
            for section in rows.sections
            if section.axes
            for name in {s.buffer for s in section.statements if isinstance(s, Load)}
        )
        types = (self.buffers[name].type for name, loops in readers.items() if loops > 1)
        return sum(ITEM_SIZE[type.dtype] for type in types if self.rough(numel(type.shape)) >= size)

    def combine_together(self, before: list[Kernel], sums: Kernel) -> None:
        """Let one nest combine the parts of these sums and of earlier ones, where each has one."""
        old, new = ({s.buffer for nest in nests for s in _writes(nest)} for nests in (before, [sums]))
        found = self.readers(old), self.readers(new)
        if [len(numbers) for numbers in found] == [1, 1] and found[0] != found[1]:
            (one,), (other,) = found
            a, b = self.items[one], self.items[other]
            assert isinstance(a, Kernel)
            assert isinstance(b, Kernel)
            if self.dependences.may_merge(one, other):
                types = {name: buffer.type for name, buffer in self.buffers.items()}
                merged = merge(part_of(a), part_of(b), types, self.names, GPU_LIMITS)
                if not isinstance(merged, str):
                    self.join(one, other, merged.nest)

    def resize(self, names: set[str], parts: Dim) -> bool:
        """Make the buffers of partial sums as long as there are parts now, and the loops over them; False, and nothing
        is changed, where something else is done with them."""
        readers: dict[int, Item] = {}
        for number in self.readers(names):
            item = self.items[number]
            longer = _longer(item, names, parts) if isinstance(item, Kernel) else None
            if longer is None:
                return False
            readers[number] = longer
        if names & output_names(self.schedule) or any(buffer.base in names for buffer in self.buffers.values()):
            return False
        self.items |= readers
        for name in names:
            kind = self.buffers[name].type
            self.buffers[name] = Buffer(name, contiguous(kind.dtype, (parts, *kind.shape[1:]), kind.device), "kernel")
        return True


def _longer(nest: Kernel, names: set[str], parts: Dim) -> Kernel | None:
    """A nest whose loops over parts are so long; None where they are not loops over these alone."""
    loops: set[str] = set()
    others = {axis.name for axis in nest.axes}
    for statement in statements_of(nest):
        if not isinstance(statement, Load) or statement.buffer not in names:
            others |= used_axes(statement)
            continue
        first, *rest = statement.index
        others |= {name for place in rest for name in ix.axes_of(place)}
        loops |= ix.axes_of(first)
        if first not in [ix.axis(name) for name in loops]:
            return None
    if loops & others:
        return None
    sections = [
        Section(tuple([Axis(a.name, parts) if a.name in loops else a for a in section.axes]), section.statements)
        for section in nest.sections
    ]
    return replace(nest, sections=tuple(sections))


def _over_whole_axes(sums: Kernel, tails: Mapping[str, Tail]) -> Kernel:
    """Sums over tiles with a masked tail as sums over the whole axis; of the stores, only the buffers count."""
    loop, stores = sums.sections
    loop, part = unmasked(loop, tails)
    axes = tuple([axis for axis in sums.axes if axis.name != part])
    return replace(sums, axes=axes, sections=(loop, stores))


def _renamed(nest: Kernel, names: dict[str, Index], axis: Axis) -> Kernel:
    """The nest with one axis for several that are alike."""
    return substitute_axes(nest, names, dict.fromkeys(names, (axis,)))


def _reads_at_its_point(statements: list[Statement], rows: Kernel) -> bool:
    """Whether statements read of what a nest writes only the element that is written at the same point."""
    written: dict[str, set[tuple[Index, ...]]] = {}
    for write in _writes(rows):
        written.setdefault(write.buffer, set()).add(write.index)
    reads = [s for s in statements if isinstance(s, Load) and s.buffer in written]
    return all(written[s.buffer] == {s.index} and s.mask is None for s in reads)


def _writes(nest: Kernel) -> list[Store]:
    return [s for s in statements_of(nest) if isinstance(s, Store)]


def _looped(nest: Kernel) -> list[Axis]:
    """The axes of the loops of a nest."""
    return [axis for section in nest.sections for axis in section.axes]


def _is_of_sums(nest: Kernel) -> bool:
    """Whether a nest does nothing but sums, each of which it stores by part and column."""
    if len(nest.axes) < 2 or len(nest.sections) != 2 or not nest.sections[0].axes or nest.sections[1].axes:
        return False
    (loop, stores), (*parts, column) = nest.sections, nest.axes
    if any(isinstance(s, Store | Scan) or (isinstance(s, Reduce) and s.reduction != "sum") for s in loop.statements):
        return False
    if not all(isinstance(s, Store) and s.mode == "set" and s.mask is None for s in stores.statements):
        return False
    made = [s.results[0] for s in loop.statements if isinstance(s, Reduce)]
    kept = [s.value.name for s in _writes(nest) if isinstance(s.value, Ref)]
    places = {s.index for s in _writes(nest)}
    if not made or sorted(made) != sorted(kept):
        return False
    return places == {(ix.row_major(parts), ix.axis(column.name))}


def _places(rows: Kernel, sums: Kernel, inner: Axis, buffers: Mapping[str, Buffer]) -> dict[str, Index] | None:
    """What the axes of sums are at a point of the rows, in the order in which something lies in memory that both read
    (or the rows write); None if there is nothing. inner: the axis of the loops over a row."""
    theirs = {s.buffer: s for s in statements_of(rows) if isinstance(s, Load | Store)}
    (*parts, column), counted = sums.axes, sums.sections[0].axes
    sizes = axis_sizes(sums) | axis_sizes(rows)
    for read in select(sums.sections, Load) if column.size == inner.size else ():
        if read.buffer not in theirs:
            continue
        stride = buffers[read.buffer].type.stride
        here, there = (ix.linear(s.index, stride) for s in (read, theirs[read.buffer]))
        digits, ways = _slowest_first((*parts, *counted), here), _slowest_first(rows.axes, there)
        if digits is None or ways is None or points_of(digits) != points_of(ways):
            continue
        found = dict.fromkeys(sizes.keys() - axis_sizes(rows).keys(), ix.ZERO) | {column.name: ix.axis(inner.name)}
        at = ix.delinear(ix.row_major(ways), [axis.size for axis in digits], sizes)
        found |= {axis.name: place for axis, place in zip(digits, at, strict=True)}
        if ix.substitute(here, found, sizes) == there:
            return found
    return None


def _slowest_first(axes: Sequence[Axis], index: Index) -> tuple[Axis, ...] | None:
    """The axes of more than one point, by how far an index goes with them; None where it does not vary along each."""
    steps, long = ix.affine(index), [axis for axis in axes if axis.size != 1]
    if steps is None or any(axis.name not in steps for axis in long):
        return None
    return tuple(sorted(long, key=lambda axis: estimate(steps[axis.name]), reverse=True))
