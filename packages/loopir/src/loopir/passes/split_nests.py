"""What passes share that make several nests of a long one, so that a GPU has enough to do side by side: statements in
order, along what memory runs, and tiles of an axis, all of one length, of which the last may be a masked tail (loads of
a tail are masked, stores too, and reductions are given their neutral element there)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from loopir.schedule import Item, Names, Rewriting, Schedule, Tail
from stagewire import index as ix
from stagewire import loop
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.literals import neutral
from stagewire.loop import Buffer, Kernel, Load, Section
from stagewire.sizes import Hints, rough
from stagewire.statements import indices, map_indices, replace_values, results, used_axes, used_values, writes_of
from stagewire.types import DType


def split_nests(schedule: Schedule, split: Callable[[Kernel, Rewriting], Iterable[Kernel] | None]) -> Schedule:
    """The schedule with what `split` makes of each nest in its place; None: the nest stays."""
    state, items = Rewriting(schedule), list[Item]()
    for item in schedule.items:
        items.extend((split(item, state) if isinstance(item, Kernel) else None) or (item,))
    return state.with_items(items)


class Writer(list[loop.Statement]):
    """Statements in order: each method adds one, whose result has a new name, and gives what it defines."""

    def __init__(self, names: Names, statements: Iterable[loop.Statement] = ()) -> None:
        super().__init__(statements)
        self.names = names

    def add(self, kind: Callable[..., loop.Statement], *fields: Any) -> Ref:
        """A statement with one result, which is its first field."""
        name = self.names("v")
        self.append(kind(name, *fields))
        return Ref(name)

    def compute(self, op: str, *operands: loop.Operand, dtype: DType = "bool") -> Ref:
        return self.add(loop.Compute, op, operands, dtype)

    def reduce(self, kind: loop.ReduceKind, operand: loop.Operand, dtype: DType) -> Ref:
        name = self.names("v")
        self.append(loop.Reduce((name,), kind, operand, dtype))
        return Ref(name)


def divisor(size: Dim, most: int) -> int:
    """The greatest divisor of a size that is at most so much."""
    assert isinstance(size, int)
    return max(d for d in range(1, min(most, size) + 1) if size % d == 0)


class Ways(NamedTuple):
    """The axes of a loop along which memory runs, and the outer ones, in loads that vary with both."""

    rows: frozenset[str]
    columns: frozenset[str]


def ways_of(nest: Kernel, section: Section, buffers: Mapping[str, Buffer]) -> Ways:
    """Along what memory runs in a loop of a nest."""
    inner, outer = {axis.name for axis in section.axes}, {axis.name for axis in nest.axes}
    rows, columns = set[str](), set[str]()
    for statement in section.statements:
        if isinstance(statement, Load):
            offset = ix.linear(statement.index, buffers[statement.buffer].type.stride)
            steps = ix.steps(offset)
            is_shared = outer and not outer & set(steps)  # by all outer points
            if not is_shared:
                rows |= {name for name in inner if steps.get(name) == 1}
            if not inner.isdisjoint(steps):
                columns |= {name for name in outer if steps.get(name) == 1}
    return Ways(frozenset(rows), frozenset(columns))


def is_on_gpu(nest: Kernel, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a nest writes memory of a GPU."""
    written = writes_of(nest)
    return bool(written) and not buffers[written[0]].type.device.startswith("cpu")


ALIGNED_START = 16
"""Elements: long tiles begin at multiples of it, so that loads of vectors are aligned."""

MOST_TILES_IN_ONE = 16
"""A symbolic axis that may have no masked tail is one tile where it is at most so many times too long."""


class Tiling(NamedTuple):
    """An axis in tiles of one length.

    parts: how many tiles.
    length: elements of a tile.
    about: how many tiles by the hints, where `parts` is symbolic.
    has_tail: whether the last tiles have a masked tail.
    """

    axis: loop.Axis
    parts: Dim
    length: Dim
    about: int
    has_tail: bool = False

    def place(self, part: loop.Axis, inside: loop.Axis | None) -> loop.Index:
        """A position on the axis by its tile and the position in that."""
        start = ix.scale(ix.axis(part.name), self.length)
        return start if inside is None else ix.add(start, ix.axis(inside.name))


def tile_evenly(axis: loop.Axis, most: int, hints: Hints, bound: int | None = None) -> Tiling:
    """At most so many tiles: a divisor of a number, or each point of a symbolic size that is small enough."""
    if isinstance(axis.size, int):
        parts = divisor(axis.size, most)
        return Tiling(axis, parts, axis.size // parts, parts)
    about = rough(axis.size, hints)
    if about <= (most if bound is None else bound):
        return Tiling(axis, axis.size, 1, about)
    return Tiling(axis, 1, axis.size, 1)


def tile_with_tail(axis: loop.Axis, parts: int, hints: Hints) -> Tiling:
    """So many tiles, whatever the size is: the last with a masked tail."""
    unit = ALIGNED_START if rough(axis.size, hints) >= ALIGNED_START**2 * parts else 1
    length = (axis.size + (parts * unit - 1)) // (parts * unit) * unit
    return Tiling(axis, parts, length, parts, has_tail=True)


def masked(section: loop.Section, tails: list[Tail], state: Rewriting) -> loop.Section:
    """The section, in which what lies behind the end is not accessed and is neutral in reductions.

    What does not depend on positions in a tail is read as it was: once for all points.
    """
    state.tails |= {one.inside.name: one for one in tails}
    statements, tests = Writer(state.names), list[Ref]()
    for one in tails:
        at = statements.add(loop.IndexValue, ix.axis(one.inside.name))
        tests.append(statements.compute("lt", at, statements.add(loop.IndexValue, one.left)))
        tests[:] = [statements.compute("logical_and", *tests)] if len(tests) > 1 else tests
    (inside,) = tests
    moving = {axis.name for one in tails for axis in (one.part, one.inside)}
    dtypes: dict[str, DType] = {}
    both: dict[str, Ref] = {}

    def narrowed(mask: Ref | None) -> Ref:
        if mask is None:
            return inside
        if mask.name not in both:
            both[mask.name] = statements.compute("logical_and", inside, mask)
        return both[mask.name]

    for statement in section.statements:
        moves = not moving.isdisjoint(used_values(statement) | used_axes(statement))
        if moves:
            moving.update(results(statement))
        match statement:
            case loop.Load(result=result, dtype=dtype, mask=mask):
                dtypes[result] = dtype
                if moves:
                    other = statement.other if mask is not None else neutral("sum", dtype)
                    statement = replace(statement, mask=narrowed(mask), other=other)
            case loop.Store(mask=mask):
                statement = replace(statement, mask=narrowed(mask))
            case loop.Reduce(reduction=reduction, operand=operand, dtype=dtype):
                dtype = dtypes[operand.name] if isinstance(operand, Ref) else dtype
                kept = statements.compute("where", inside, operand, neutral(reduction, dtype), dtype=dtype)
                statement = replace(statement, operand=kept)
            case loop.Compute(result=result, dtype=dtype) | loop.IndexValue(result=result, dtype=dtype):
                dtypes[result] = dtype
        statements.append(statement)
    return loop.Section(section.axes, tuple(statements))


def unmasked(section: loop.Section, tails: Mapping[str, Tail]) -> tuple[loop.Section, str | None]:
    """A loop over tiles of an axis with a masked tail as one over the whole axis, without what `masked` added; and
    the axis of the tiles, which is 0 then. The section as it is, and None, where it is not such a loop."""
    known = [tails[axis.name] for axis in section.axes if axis.name in tails]
    tail = next((one for one in known if one.inside in section.axes), None)
    if tail is None:
        return section, None
    places = {s.index: s for s in section.statements if isinstance(s, loop.IndexValue)}
    ends = [places.get(index) for index in (ix.axis(tail.inside.name), tail.left)]
    compared = tuple([Ref(one.result) for one in ends if one is not None])
    tests = [s for s in section.statements if isinstance(s, loop.Compute) and (s.op, s.operands) == ("lt", compared)]
    others = [s for s in section.statements if s not in (*tests, *ends)]
    if len(tests) != 1 or not all(_sees_whole_axis(s, tail) for s in others):
        return section, None
    values: dict[str, loop.Operand] = {}
    statements: list[loop.Statement] = []
    for statement in others:
        statement = replace_values(statement, values)
        match statement:
            case loop.Compute(result, "where" | "logical_and", (Ref(name), kept, *_)) if name == tests[0].result:
                values[result] = kept
                continue
            case loop.Load(mask=Ref(name)) if name == tests[0].result:
                statement = replace(statement, mask=None, other=0)
        statements.append(map_indices(statement, partial(ix.inline, mapping={tail.part.name: ix.ZERO})))
    axes = tuple([loop.Axis(axis.name, tail.size) if axis == tail.inside else axis for axis in section.axes])
    return loop.Section(axes, tuple(statements)), tail.part.name


def _sees_whole_axis(statement: loop.Statement, tail: Tail) -> bool:
    """Whether the indices of a statement see nothing but the whole axis."""
    part, inside = tail.part.name, tail.inside
    for index in indices(statement):
        steps = {t.atom.name: t.coefficient for t in index.terms if isinstance(t.atom, loop.AxisAtom)}
        is_seen = not ix.axes_of(index).isdisjoint({part, inside.name})
        if is_seen and not (ix.is_plain(index) and steps.get(part, 0) == steps.get(inside.name, 0) * inside.size):
            return False
    return True


def allows_masked_tail(section: loop.Section) -> bool:
    """Whether every reduction has a neutral element."""
    return not any(isinstance(s, loop.Reduce) and s.reduction == "welford" for s in section.statements)
