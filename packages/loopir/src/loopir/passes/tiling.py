"""Tiles of an axis, all of one length; the last may be a masked tail.

Loads of a tail are masked, stores too, and reductions are given their neutral element there.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from loopir.passes.split_nests import Writer, divisor
from loopir.schedule import Names
from stagewire import index as ix
from stagewire import loop
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.literals import neutral
from stagewire.sizes import Hints, rough
from stagewire.statements import indices, map_indices, replace_values, results, used_axes, used_values
from stagewire.types import DType

ALIGNED_START = 16
"""Elements: long tiles begin at multiples of it, so that loads of vectors are aligned."""

MOST_TILES_IN_ONE = 16
"""A symbolic axis that may have no masked tail is one tile where it is at most so many times too long."""


class TailPosition(NamedTuple):
    """A position on a tiled axis that may lie behind its end.

    start: of the tile, in elements of the axis.
    inside: the position in the tile.
    size: of the whole axis.
    """

    start: loop.Index
    inside: loop.Index
    size: Dim


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

    def tail_position(self, part: loop.Axis, inside: loop.Axis) -> TailPosition:
        """The same, where it may lie in the masked tail."""
        return TailPosition(ix.scale(ix.axis(part.name), self.length), ix.axis(inside.name), self.axis.size)


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


def in_bounds(places: list[TailPosition], names: Names) -> tuple[Writer, Ref]:
    """Statements that compute whether each place lies before the end of its axis.

    What is left of the axis at the start of a part is the same for all of it, and is compared with.
    """
    made = Writer(names)
    found: Ref | None = None
    for start, inside, size in places:
        at = made.add(loop.IndexValue, inside)
        one = made.compute("lt", at, made.add(loop.IndexValue, ix.shift(ix.scale(start, -1), size)))
        found = one if found is None else made.compute("logical_and", found, one)
    assert found is not None, "asked only where an axis has a masked tail"
    return made, found


def masked(section: loop.Section, tail_positions: list[TailPosition], names: Names) -> loop.Section:
    """The section, in which what lies behind the end is not accessed and is neutral in reductions.

    What does not depend on positions in a tail is read as it was: once for all points.
    """
    statements, inside = in_bounds(tail_positions, names)
    moving = {name for one in tail_positions for place in (one.start, one.inside) for name in ix.axes_of(place)}
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


def unmasked(section: loop.Section) -> tuple[loop.Section, str | None]:
    """A loop over tiles of an axis with a masked tail as one over the whole axis, without what `masked` added; and
    the axis of the tiles, which is 0 then. The section as it is, and None, where it is not such a loop."""
    found = _hanging(section)
    if found is None:
        return section, None
    test, part, inside, size = found
    if not all(_sees_whole_axis(s, part, inside) for s in section.statements if s not in test):
        return section, None
    inside_of_all = test[-1].result
    values: dict[str, loop.Operand] = {}
    statements: list[loop.Statement] = []
    for statement in section.statements:
        statement = replace_values(statement, values)
        match statement:
            case _ if statement in test:
                continue
            case loop.Compute(result, "where", (Ref(name), kept, _)) if name == inside_of_all:
                values[result] = kept
                continue
            case loop.Compute(result, "logical_and", (Ref(name), mask)) if name == inside_of_all:
                values[result] = mask
                continue
            case loop.Load(mask=Ref(name)) if name == inside_of_all:
                statement = replace(statement, mask=None, other=0)
        statements.append(map_indices(statement, partial(_without, name=part)))
    axes = tuple([loop.Axis(axis.name, size) if axis == inside else axis for axis in section.axes])
    return loop.Section(axes, tuple(statements)), part


def _hanging(
    section: loop.Section,
) -> tuple[tuple[loop.IndexValue, loop.IndexValue, loop.Compute], str, loop.Axis, Dim] | None:
    """The statements of a test of `in_bounds`, the axis of the tiles, that of the points of one, and the whole size."""
    places = {s.result: s for s in section.statements if isinstance(s, loop.IndexValue)}
    loops = {axis.name: axis for axis in section.axes}
    for test in section.statements:
        match test:
            case loop.Compute(_, "lt", (Ref(at), Ref(left))) if at in places and left in places:
                inside = loops.get(ix.single_axis(places[at].index) or "")
                match places[left].index:
                    case loop.Index(size, (loop.Term(step, loop.AxisAtom(part)),)) if (
                        inside is not None and step == -inside.size
                    ):
                        return (places[at], places[left], test), part, inside, size
    return None


def _sees_whole_axis(statement: loop.Statement, part: str, inside: loop.Axis) -> bool:
    """Whether the indices of a statement see nothing but the whole axis."""
    for index in indices(statement):
        steps = {t.atom.name: t.coefficient for t in index.terms if isinstance(t.atom, loop.AxisAtom)}
        is_seen = not ix.axes_of(index).isdisjoint({part, inside.name})
        if is_seen and not (ix.is_plain(index) and steps.get(part, 0) == steps.get(inside.name, 0) * inside.size):
            return False
    return True


def _without(index: loop.Index, name: str) -> loop.Index:
    return loop.Index(index.constant, tuple([term for term in index.terms if term.atom != loop.AxisAtom(name)]))


def allows_masked_tail(section: loop.Section) -> bool:
    """Whether every reduction has a neutral element."""
    return not any(isinstance(s, loop.Reduce) and s.reduction == "welford" for s in section.statements)
