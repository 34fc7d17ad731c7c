"""Expansion: rebuild a nest with the reads of virtual buffers replaced by what defines them."""

from __future__ import annotations

from collections.abc import Mapping

from loopir.emitter import Emitter, Typed, literal_key
from loopir.passes.definitions import Definition, Piece
from loopir.schedule import Names, axis_sizes
from stagewire import index as ix
from stagewire import loop
from stagewire.graph import Ref
from stagewire.loop import Axis, Compute, Index, IndexValue, Kernel, Load, Operand, Reduce, Scan, Statement, Store
from stagewire.statements import reads_of

Mask = Typed | bool


class Expander:
    """Expands one nest; `virtual` gives the definitions to put in the place of reads."""

    def __init__(self, virtual: Mapping[str, Definition], names: Names) -> None:
        self.virtual = virtual
        self.names = names
        self.emitter = Emitter(names)
        self.done: dict[object, Typed] = {}

    def nest(self, nest: Kernel) -> Kernel:
        """The expanded nest, over the same axes."""
        if self.virtual and self.virtual.keys().isdisjoint(reads_of(nest)):
            return nest
        self.emitter = Emitter(self.names, dict(axis_sizes(nest)))
        values: dict[str, Typed] = {}
        for section in nest.sections:
            self.done = {}
            self._section(section, values)
        return Kernel(nest.name, nest.axes, self.emitter.finish(), nest.origins, nest.line)

    def _section(self, section: loop.Section, values: dict[str, Typed]) -> None:
        self.emitter.open(section.axes)
        for statement in section.statements:
            self._statement(statement, values, {}, True)

    def _statement(self, statement: Statement, values: dict[str, Typed], axes: Mapping[str, Index], mask: Mask) -> None:
        kind = statement.__class__
        if kind is Compute:
            values[statement.result] = self._compute(statement, values)  # type: ignore[union-attr]
        elif kind is Load:
            values[statement.result] = self._read(statement, values, axes, mask)  # type: ignore[arg-type,union-attr]
        elif kind is Store:
            self._write(statement, values, axes)  # type: ignore[arg-type]
        elif kind is IndexValue:
            place = self._place((statement.index,), values, axes)  # type: ignore[union-attr]
            values[statement.result] = self.emitter.index_value(place[0], statement.dtype)  # type: ignore[union-attr]
        elif kind is Reduce:
            operand = self._value(statement.operand, values)  # type: ignore[union-attr]
            found = self.emitter.reduce(statement.reduction, operand, statement.dtype)  # type: ignore[union-attr]
            values.update(zip(statement.results, found, strict=True))  # type: ignore[union-attr]
        elif kind is Scan:
            operand = self._value(statement.operand, values)  # type: ignore[union-attr]
            values[statement.result] = self.emitter.scan(statement.scan, operand, statement.dtype)  # type: ignore[union-attr]

    def _write(self, write: Store, values: Mapping[str, Typed], axes: Mapping[str, Index]) -> None:
        kept = self._value(write.mask, values) if write.mask else True
        if kept is not False:
            place = self._place(write.index, values, axes)
            guard = kept if isinstance(kept, Ref) else None
            self.emitter.write(write.buffer, place, self._value(write.value, values), write.mode, guard)

    def _value(self, operand: Operand, values: Mapping[str, Typed]) -> Operand:
        return values[operand.name].operand if isinstance(operand, Ref) else operand

    def _compute(self, statement: Compute, values: Mapping[str, Typed]) -> Typed:
        op, operands, dtype = statement.op, statement.operands, statement.dtype
        known = [values[o.name] if o.__class__ is Ref else o for o in operands]  # type: ignore[union-attr]
        return self.emitter.compute(op, *known, dtype=dtype)

    def _place(
        self, coordinates: tuple[Index, ...], values: Mapping[str, Typed], axes: Mapping[str, Index]
    ) -> tuple[Index, ...]:
        for coordinate in coordinates:
            if coordinate.terms and (axes or ix.has_values(coordinate)):
                break
        else:
            return coordinates
        return tuple([self._index(c, values, axes) if c.terms else c for c in coordinates])

    def _index(self, index: Index, values: Mapping[str, Typed], axes: Mapping[str, Index]) -> Index:
        if ix.has_values(index):
            axes = {**axes, **{name: self.emitter.place(values[name]) for name in ix.values_of(index)}}
        return ix.substitute(index, axes, self.emitter.sizes)

    def _read(self, read: Load, values: Mapping[str, Typed], axes: Mapping[str, Index], mask: Mask) -> Typed:
        place = self._place(read.index, values, axes)
        own = values[read.mask.name] if read.mask else None
        if own is not None and own.operand is False:
            return Typed(read.other, read.dtype)
        if own is not None and own.operand is True:
            own = None
        guard = mask if own is None else self.emitter.both(own, mask)
        if own is None:
            return self._element(read.buffer, place, guard, read.dtype, 0)
        if self._is_plain(read.buffer):
            return self._element(read.buffer, place, guard, read.dtype, read.other)
        inside = self._element(read.buffer, place, guard, read.dtype, 0)
        return self.emitter.compute("where", own, inside, Typed(read.other, read.dtype))

    def _is_plain(self, buffer: str) -> bool:
        """Whether a masked read of `buffer` ends in one masked read (views all the way)."""
        while buffer in self.virtual:
            read = self.virtual[buffer].copy_of
            if read is None or read.mask is not None:
                return False
            buffer = read.buffer
        return True

    def _element(self, buffer: str, place: tuple[Index, ...], mask: Mask, dtype: str, other: Operand) -> Typed:
        definition = self.virtual.get(buffer)
        if definition is None:
            guard = mask.operand if isinstance(mask, Typed) else None
            return self.emitter.read(buffer, place, dtype, guard, other)  # type: ignore[arg-type]
        key = (buffer, place) if mask is True else (buffer, place, mask, literal_key(other))
        found = self.done.get(key)
        if found is None:
            found = self._defined(definition, place, mask, other)
            self.done[key] = found
        return found

    def _defined(self, definition: Definition, place: tuple[Index, ...], mask: Mask, other: Operand) -> Typed:
        read = definition.copy_of
        if read is not None and read.mask is None:
            piece = definition.pieces[0]
            inner = self._place(read.index, {}, self._axes(piece, place))
            return self._element(read.buffer, inner, mask, read.dtype, other)
        result: Typed | None = None
        for piece in definition.pieces:
            test = self._inside(piece, place) if len(definition.pieces) > 1 else True
            if test is False:
                continue
            value = self._piece(piece, place, self.emitter.both(test, mask), definition.dtype)
            if result is None or test is True:
                result = value
            else:
                assert isinstance(test, Typed)
                result = self.emitter.compute("where", test, value, result)
        return result if result is not None else Typed(0, definition.dtype)

    def _piece(self, piece: Piece, place: tuple[Index, ...], mask: Mask, dtype: str) -> Typed:
        values: dict[str, Typed] = {}
        axes = self._axes(piece, place)
        for statement in piece.statements:
            self._statement(statement, values, axes, mask)
        stored = piece.value.value
        return values[stored.name] if isinstance(stored, Ref) else Typed(stored, dtype)  # type: ignore[arg-type]

    def _axes(self, piece: Piece, place: tuple[Index, ...]) -> dict[str, Index]:
        found: dict[str, Index] = {}
        for axis, offset, index in zip(piece.places, piece.offsets, place, strict=True):
            if axis is not None:
                found[axis.name] = ix.shift(index, -offset)
        return found

    def _inside(self, piece: Piece, place: tuple[Index, ...]) -> Typed | bool:
        """Whether a point lies in the piece: statically, or as a mask."""
        mask: Typed | bool = True
        for axis, offset, index in zip(piece.places, piece.offsets, place, strict=True):
            stop = offset + (axis.size if isinstance(axis, Axis) else 1)
            mask = self.emitter.both(mask, self.emitter.within(index, offset, stop))
            if mask is False:
                break
        return mask
