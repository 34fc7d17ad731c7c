"""Which buffers are functions of their index: what the inliner may put in the place of a read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from loopir.schedule import Schedule
from stagewire.expr import Dim
from stagewire.index import has_values
from stagewire.loop import Axis, AxisAtom, Buffer, Compute, Kernel, Load, Statement, Store
from stagewire.loop_ops import cost
from stagewire.statements import select
from stagewire.types import ITEM_SIZE, DType


class Piece(NamedTuple):
    """Elements offset + axis of a buffer, computed by statements at one point of the axes.

    `places` has for each dimension the axis that runs along it (None: only `offsets`), and the axis's size.
    """

    statements: tuple[Statement, ...]
    value: Store
    places: tuple[Axis | None, ...]
    offsets: tuple[Dim, ...]


class Definition(NamedTuple):
    """A buffer as a function of its index: pieces that cover it, without overlap."""

    buffer: str
    dtype: DType
    pieces: tuple[Piece, ...]

    @property
    def copy_of(self) -> Load | None:
        """The read, if the only thing done is to read one element of another buffer."""
        if len(self.pieces) == 1 and len(self.pieces[0].statements) == 1:
            (statement,) = self.pieces[0].statements
            return statement if isinstance(statement, Load) else None
        return None

    def widens(self, types: Mapping[str, Buffer]) -> Load | None:
        """The read, if the only thing done is to give one element of another buffer in a dtype of larger items."""
        statements = self.pieces[0].statements if len(self.pieces) == 1 else ()
        if len(statements) != 2 or not isinstance(statements[0], Load) or not isinstance(statements[1], Compute):
            return None
        read, compute = statements
        is_wider = ITEM_SIZE[self.dtype] > ITEM_SIZE[types[read.buffer].type.dtype]
        return read if compute.op == "convert" and read.mask is None and is_wider else None


def definitions(schedule: Schedule) -> dict[str, Definition]:
    """Every buffer that pointwise nests define completely."""
    pieces: dict[str, list[Piece | None]] = {}
    for nest in schedule.kernels:
        writes = select(nest.sections, Store)
        is_pointwise = len(nest.sections) == 1 and not nest.sections[0].axes
        piece = piece_of(nest) if is_pointwise and len(writes) == 1 else None
        for write in writes:
            pieces.setdefault(write.buffer, []).append(piece)
    return {
        buffer: Definition(buffer, schedule.buffers[buffer].type.dtype, tuple(found))  # type: ignore[arg-type]
        for buffer, found in pieces.items()
        if None not in found
    }


def piece_of(nest: Kernel) -> Piece | None:
    """The elements that a pointwise nest defines, or None where its store does not count along the axes plainly."""
    statements = nest.sections[0].statements
    write = statements[-1]
    if not isinstance(write, Store) or write.mode != "set" or write.mask is not None:
        return None
    axes = {axis.name: axis for axis in nest.axes}
    places: list[Axis | None] = []
    offsets: list[Dim] = []
    for coordinate in write.index:
        offset, terms = coordinate.constant, coordinate.terms
        if len(terms) > 1:
            return None
        axis = None
        if terms:
            atom = terms[0].atom
            if atom.__class__ is not AxisAtom or terms[0].coefficient != 1:
                return None
            axis = axes.pop(atom.name, None)  # type: ignore[union-attr]
            if axis is None:
                return None
        places.append(axis)
        offsets.append(offset)
    return None if axes else Piece(statements[:-1], write, tuple(places), tuple(offsets))


GATHER = 15
"""Instructions of a GPU for an address in 64 bits that comes from memory, within its bounds."""


def cost_of(statements: tuple[Statement, ...], on_gpu: bool = False) -> int:
    """Rough instructions a point: of a CPU's vectors, for which only gathers are loads that count, or of a GPU, where
    integers of 64 bits take two for one."""
    total = 0
    for statement in statements:
        kind = statement.__class__
        if kind is Compute:
            total += cost(statement.op, on_gpu) * (2 if on_gpu and statement.dtype == "int64" else 1)  # type: ignore[union-attr]
        elif kind is Load:
            gathers = any(map(has_values, statement.index))  # type: ignore[union-attr,arg-type]
            total += (GATHER if gathers else 1) if on_gpu else 3 * gathers
    return total
