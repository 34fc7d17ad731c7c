"""Rewriting of statements: indices through a function, values through a renaming."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import is_

from loopir.nest import Block, Nest, Read, Statement, Write, axis_sizes, used_values
from stagewire import index as ix
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.loop import Axis, Compute, Index, IndexValue, Operand, Reduce, Scan

IndexMap = Callable[[Index], Index]


def map_indices(statement: Statement, change: IndexMap) -> Statement:
    """The statement with every index expression passed through `change`."""
    kind = statement.__class__
    if kind is Read or kind is Write:
        old = statement.coordinates  # type: ignore[union-attr]
        new = tuple([change(c) if c.terms else c for c in old])
        if all(map(is_, old, new)):
            return statement
        if kind is Read:
            return Read(statement.result, statement.buffer, new, statement.dtype, statement.mask, statement.other)  # type: ignore[union-attr]
        return Write(statement.buffer, new, statement.value, statement.mode, statement.mask)  # type: ignore[union-attr]
    if kind is IndexValue:
        return IndexValue(statement.result, change(statement.index), statement.dtype)  # type: ignore[union-attr]
    return statement


def replace_values(statement: Statement, values: Mapping[str, Operand]) -> Statement:
    """The statement with uses of values replaced; a value used in an index must be replaced by a reference."""
    if not values or values.keys().isdisjoint(used_values(statement)):
        return statement

    def operand(old: Operand) -> Operand:
        return values.get(old.name, old) if isinstance(old, Ref) else old

    def mask(old: Ref | None) -> Ref | None:
        new = operand(old) if old is not None else None
        return new if isinstance(new, Ref) else old

    names = {old: new.name for old, new in values.items() if isinstance(new, Ref)}
    statement = map_indices(statement, lambda index: ix.rename(index, names))
    match statement:
        case Read(result, buffer, coordinates, dtype, m, other):
            return Read(result, buffer, coordinates, dtype, mask(m), other)
        case Write(buffer, coordinates, value, mode, m):
            return Write(buffer, coordinates, operand(value), mode, mask(m))
        case Compute(result, op, operands, dtype):
            return Compute(result, op, tuple([operand(o) for o in operands]), dtype)
        case Reduce(results, reduction, value, dtype):
            return Reduce(results, reduction, operand(value), dtype)
        case Scan(result, scan, value, dtype):
            return Scan(result, scan, operand(value), dtype)
    return statement


def substitute_axes(nest: Nest, mapping: Mapping[str, Index], replacement: Mapping[str, tuple[Axis, ...]]) -> Nest:
    """The nest with axes replaced by indices over new axes; `replacement` lists the new axes in the place of an old."""
    if not mapping:
        return nest
    sizes: dict[str, Dim] = axis_sizes(nest)
    for axes in replacement.values():
        sizes.update({axis.name: axis.size for axis in axes})

    def change(index: Index) -> Index:
        return ix.substitute(index, mapping, sizes)

    blocks = tuple([
        Block(_replace(block.axes, replacement), tuple([map_indices(s, change) for s in block.statements]))
        for block in nest.blocks
    ])  # fmt: skip
    return Nest(nest.name, _replace(nest.axes, replacement), blocks, nest.origins, nest.line)


def _replace(axes: tuple[Axis, ...], replacement: Mapping[str, tuple[Axis, ...]]) -> tuple[Axis, ...]:
    return tuple(new for axis in axes for new in replacement.get(axis.name, (axis,)))
