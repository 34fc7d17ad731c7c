"""Which buffers are functions of their index: what the inliner may put in the place of a read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from loopir.schedule import Schedule
from stagewire.expr import Dim
from stagewire.index import has_values
from stagewire.loop import Axis, AxisAtom, Buffer, Compute, Extern, Kernel, Load, Statement, Store
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
    for item in schedule.items:
        if isinstance(item, Extern):
            continue
        if len(item.sections) == 1 and not item.sections[0].axes:
            writes = [s for s in item.sections[0].statements if s.__class__ is Store]
            piece = piece_of(item) if len(writes) == 1 else None
        else:
            writes = select(item.sections, Store)
            piece = None
        for write in writes:
            pieces.setdefault(write.buffer, []).append(piece)  # type: ignore[union-attr]
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


COST = {
    "sign": 2, "check_index": 2, "wrap_index": 2, "sqrt": 4, "reciprocal": 4, "div": 4, "nextafter": 4, "rsqrt": 5,
    "floor_div": 6, "trunc_div": 6, "remainder": 8, "hypot": 8, "exp": 10, "exp2": 10, "log": 10, "log2": 10,
    "log10": 10, "fmod": 10, "tanh": 12, "sigmoid": 12, "expm1": 14, "log1p": 14, "sin": 15, "cos": 15, "asin": 15,
    "acos": 15, "atan": 15, "sinh": 15, "cosh": 15, "erf": 15, "tan": 20, "asinh": 20, "acosh": 20, "atanh": 20,
    "erfc": 20, "atan2": 20, "philox": 20, "erfinv": 25, "pow": 25, "lgamma": 40, "digamma": 40,
}  # fmt: skip
"""Rough vector instructions an element of the ops that take more than one."""


def cost_of(statements: tuple[Statement, ...]) -> int:
    """Rough vector instructions a point."""
    cost = 0
    for statement in statements:
        kind = statement.__class__
        if kind is Compute:
            cost += COST.get(statement.op, 1)  # type: ignore[union-attr]
        elif kind is Load:
            for coordinate in statement.index:  # type: ignore[union-attr]
                if has_values(coordinate):
                    cost += 3
                    break
    return cost


INSTRUCTIONS = {
    "exp": 6, "exp2": 2, "expm1": 20, "log": 26, "log2": 26, "log10": 26, "log1p": 30, "sqrt": 20, "reciprocal": 10,
    "sin": 30, "cos": 30, "tan": 60, "tanh": 24, "erf": 28, "sigmoid": 9, "div": 8, "pow": 80, "convert": 1,
}  # fmt: skip
"""Of a GPU (sm_90) in float32, where that is not about the cost of the op."""

GATHER = 15
"""Instructions for an address in 64 bits that comes from memory, within its bounds."""


def instructions_of(statements: tuple[Statement, ...]) -> int:
    """Rough instructions of a GPU a point; integers of 64 bits take two for one."""
    count = 0
    for statement in statements:
        match statement:
            case Compute(_, op, _, dtype):
                count += INSTRUCTIONS.get(op, COST.get(op, 1)) * (2 if dtype == "int64" else 1)
            case Load(index=coordinates):
                count += GATHER if any(map(has_values, coordinates)) else 1
    return count
