"""Pass: on a GPU, sums over all rows are made by the kernel that reads the rows one by one anyway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from loopir import index as ix
from loopir.nest import (
    Block,
    Item,
    Names,
    Nest,
    Read,
    Schedule,
    Statement,
    Write,
    axis_sizes,
    output_names,
    reads_of,
    statement_axes,
    statements_of,
)
from loopir.passes.dependence import Dependences
from loopir.passes.split_nests import divisor, is_on_gpu, points_of
from loopir.rewrite import map_indices, substitute_axes
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Buffer, Decision, Index, Reduce, Scan
from stagewire.types import ITEM_SIZE, contiguous, numel


@dataclass(frozen=True)
class SumOverRows:
    """Before: a nest that works on rows, one by one, and one that reads the same to sum over the rows, in parts (the
    gradients of the operand of a norm and of its weight). After: one nest, whose outer axes are parts and the rows of a
    part; it stores for each part the sums of its rows. What combines the parts combines as many as there are now.

    longest: elements of a row at most. programs: parts at most; least: and at least. rows: of a part at least, and
    sums: of all parts at most, so that these are little beside what is read.
    """

    name = "sum_over_rows"
    longest: int = 16384
    programs: int = 528
    least: int = 96
    rows: int = 16
    sums: int = 1 << 22

    def run(self, schedule: Schedule) -> Schedule:
        state = _State(schedule, self)
        for number, item in enumerate(schedule.items):
            if isinstance(item, Nest) and _is_of_sums(item) and is_on_gpu(item, schedule.buffers):
                state.place(number, item)
        return state.result() if state.decisions else schedule


class _State:
    def __init__(self, schedule: Schedule, options: SumOverRows) -> None:
        self.schedule, self.options = schedule, options
        self.items: dict[int, Item] = dict(enumerate(schedule.items))
        self.buffers = dict(schedule.buffers)
        self.names = Names(schedule.fresh)
        self.dependences = Dependences(schedule)
        self.decisions: list[Decision] = []

    def result(self) -> Schedule:
        return msgspec.structs.replace(
            self.schedule,
            buffers=self.buffers,
            items=tuple([self.items[group] for group in self.dependences.order()]),
            fresh=self.names.count,
            decisions=(*self.schedule.decisions, *self.decisions),
        )

    def place(self, number: int, sums: Nest) -> None:
        """Put the sums into a nest of rows, if one reads the same."""
        for other in self.partners(number, sums):
            rows = self.items[other]
            assert isinstance(rows, Nest)
            made = self.merged(rows, sums) if self.dependences.may_merge(other, number) else None
            if made is not None:
                first, second = (number, other) if self.dependences.precedes(number, other) else (other, number)
                self.dependences.merge(first, second)
                self.items[first] = made
                self.decisions.append(Decision("fused", (rows.name, sums.name), "sums over the rows that are read"))
                return

    def partners(self, number: int, sums: Nest) -> list[int]:
        """Nests of rows that read at least half of what the sums read, those that read most of it first."""
        sizes = {name: self.bytes_of(name) for name in reads_of(sums)}
        found: list[tuple[int, int]] = []
        for other, item in self.items.items():
            if other != number and self.dependences.find(other) == other and isinstance(item, Nest):
                shared = sum(sizes[name] for name in set(reads_of(item)) & sizes.keys())
                if 2 * shared >= sum(sizes.values()) and _is_of_rows(item, self.options.longest):
                    found.append((-shared, other))
        return [other for _, other in sorted(found)]

    def bytes_of(self, name: str) -> int:
        count = numel(self.buffers[name].type.shape)
        return count * ITEM_SIZE[self.buffers[name].type.dtype] if isinstance(count, int) else 0

    def merged(self, rows: Nest, sums: Nest) -> Nest | None:
        """The nest of both; None where they do not fit."""
        count, inner = points_of(rows.axes), _looped(rows)[0]
        places = _places(rows, sums, inner)
        if places is None or not isinstance(count, int) or not isinstance(inner.size, int):
            return None
        most = min(self.options.programs, count // self.options.rows, self.options.sums // inner.size)
        parts = divisor(count, max(most, 1))
        if parts < self.options.least or not self.resize({s.buffer for s in _writes(sums)}, parts):
            return None
        part, row = Axis(self.names("a"), parts), Axis(self.names("a"), count // parts)
        sizes = {**axis_sizes(rows), part.name: part.size, row.name: row.size}
        flat = ix.add(ix.scale(ix.axis(part.name), row.size), ix.axis(row.name))
        found = ix.delinear(flat, [axis.size for axis in rows.axes], sizes)
        ways = {axis.name: place for axis, place in zip(rows.axes, found, strict=True)}
        places = {axis: ix.substitute(place, ways, sizes) for axis, place in places.items()}
        buffers = {s.value.name: s.buffer for s in _writes(sums) if isinstance(s.value, Ref)}
        statements: list[Statement] = []
        for statement in sums.blocks[0].statements:
            if isinstance(statement, Reduce):
                at = (ix.axis(part.name), ix.axis(inner.name))
                statements.append(Write(buffers[statement.results[0]], at, statement.operand, "sum"))
            else:
                statements.append(map_indices(statement, lambda index: ix.substitute(index, places, sizes)))
        kept = substitute_axes(rows, ways, {axis.name: () for axis in rows.axes} | {rows.axes[0].name: (part, row)})
        blocks = (Block((inner,), tuple(statements)), *kept.blocks)
        return Nest(rows.name, (part, row), blocks, (*rows.origins, *sums.origins), rows.line or sums.line)

    def resize(self, names: set[str], parts: int) -> bool:
        """Make the buffers of partial sums as long as there are parts now, and the loops over them; False, and nothing
        is changed, where something else is done with them."""
        readers: dict[int, Item] = {}
        for number, item in self.items.items():
            if self.dependences.find(number) == number and not names.isdisjoint(reads_of(item)):
                longer = _longer(item, names, parts) if isinstance(item, Nest) else None
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


def _longer(nest: Nest, names: set[str], parts: int) -> Nest | None:
    """A nest whose loops over parts are so long; None where they are not loops over these alone."""
    loops: set[str] = set()
    others = {axis.name for axis in nest.axes}
    for statement in statements_of(nest):
        if not isinstance(statement, Read) or statement.buffer not in names:
            others |= statement_axes(statement)
            continue
        first, *rest = statement.coordinates
        others |= {name for place in rest for name in ix.axes_of(place)}
        loops |= ix.axes_of(first)
        if first not in [ix.axis(name) for name in loops]:
            return None
    if loops & others:
        return None
    blocks = [
        Block(tuple([Axis(a.name, parts) if a.name in loops else a for a in block.axes]), block.statements)
        for block in nest.blocks
    ]
    return msgspec.structs.replace(nest, blocks=tuple(blocks))


def _writes(nest: Nest) -> list[Write]:
    return [s for s in statements_of(nest) if isinstance(s, Write)]


def _looped(nest: Nest) -> list[Axis]:
    """The axes of the loops of a nest."""
    return [axis for block in nest.blocks for axis in block.axes]


def _is_of_rows(nest: Nest, longest: int) -> bool:
    """Whether each outer point of a nest is a row, which is as long in each of its loops."""
    loops = [block.axes for block in nest.blocks if block.axes]
    if not nest.axes or not loops or any(isinstance(s, Scan) for s in statements_of(nest)):
        return False
    length = loops[0][0].size
    same = all(len(axes) == 1 and axes[0].size == length for axes in loops)
    return same and isinstance(length, int) and 0 < length <= longest and all(s.mode == "set" for s in _writes(nest))


def _is_of_sums(nest: Nest) -> bool:
    """Whether a nest does nothing but sums, each of which it stores by part and column."""
    if len(nest.axes) != 2 or len(nest.blocks) != 2 or not nest.blocks[0].axes or nest.blocks[1].axes:
        return False
    (loop, stores), place = nest.blocks, tuple(ix.axis(axis.name) for axis in nest.axes)
    if any(isinstance(s, Write | Scan) or (isinstance(s, Reduce) and s.reduction != "sum") for s in loop.statements):
        return False
    if not all(isinstance(s, Write) and s.mode == "set" and s.mask is None for s in stores.statements):
        return False
    made = [s.results[0] for s in loop.statements if isinstance(s, Reduce)]
    kept = [s.value.name for s in _writes(nest) if isinstance(s.value, Ref)]
    return bool(made) and sorted(made) == sorted(kept) and all(s.coordinates == place for s in _writes(nest))


def _places(rows: Nest, sums: Nest, inner: Axis) -> dict[str, Index] | None:
    """What the axes of sums are at a point of the rows, by what both read, so that each point of the sums is met once;
    None where that is not seen. inner: the axis of the loops over a row."""
    names = {axis.name: axis.name for axis in rows.axes} | {axis.name: inner.name for axis in _looped(rows)}
    left: dict[str, Dim] = {axis.name: axis.size for axis in (*rows.axes, inner) if axis.size != 1}
    sizes = {axis.name: axis.size for axis in (*sums.axes, *sums.blocks[0].axes)}
    theirs = {s.buffer: s.coordinates for s in statements_of(rows) if isinstance(s, Read)}
    places = {name: ix.ZERO for name, size in sizes.items() if size == 1}
    for read in statements_of(sums):
        if not isinstance(read, Read) or read.buffer not in theirs:
            continue
        for here, there in zip(read.coordinates, theirs[read.buffer], strict=True):
            found = _digits(here, sizes)
            along = names.get(next(iter(ix.axes_of(there)), ""), "")
            if (
                there not in [ix.axis(name) for name in names]
                or along not in left
                or not found.keys().isdisjoint(places)
            ):
                continue
            step: Dim = 1
            for axis in found:
                step = step * sizes[axis]
            if found and step == left[along]:
                place, whole = ix.axis(along), {along: left.pop(along)}
                places |= {axis: ix.mod(ix.floor_div(place, found[axis], whole), sizes[axis], whole) for axis in found}
    return places if not left and places.keys() == sizes.keys() else None


def _digits(index: Index, sizes: Mapping[str, Dim]) -> dict[str, int]:
    """The axes of which an index is the row-major position, with their steps; nothing where it is none."""
    steps: dict[str, int] = {}
    for term in index.terms:
        if not isinstance(term.atom, AxisAtom) or not isinstance(term.coefficient, int) or index.constant != 0:
            return {}
        steps[term.atom.name] = term.coefficient
    step: Dim = 1
    for axis in sorted(steps, key=lambda name: steps[name]):
        if steps[axis] != step:
            return {}
        step = step * sizes[axis]
    return steps
