"""Rewriting of statements: indices through a function, values through a renaming."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.loop import Axis, Compute, Index, IndexValue, Operand, Reduce

from loopir import index as ix
from loopir.nest import Block, Nest, Read, Statement, Write, axis_sizes

IndexMap = Callable[[Index], Index]


def map_indices(statement: Statement, change: IndexMap) -> Statement:
    """The statement with every index expression passed through `change`."""
    match statement:
        case Read(result, buffer, coordinates, dtype, mask, other):
            return Read(result, buffer, tuple(change(c) for c in coordinates), dtype, mask, other)
        case Write(buffer, coordinates, value, mode, mask):
            return Write(buffer, tuple(change(c) for c in coordinates), value, mode, mask)
        case IndexValue(result, index, dtype):
            return IndexValue(result, change(index), dtype)
    return statement


def replace_values(statement: Statement, values: Mapping[str, Operand]) -> Statement:
    """The statement with uses of values replaced; a value used in an index must be replaced by a reference."""
    if not values:
        return statement

    def operand(old: Operand) -> Operand:
        return values.get(old.name, old) if isinstance(old, Ref) else old

    def mask(old: Ref | None) -> Ref | None:
        new = operand(old) if old is not None else None
        return new if isinstance(new, Ref) else old

    names = {old: new.name for old, new in values.items() if isinstance(new, Ref)}
    statement = map_indices(statement, lambda index: ix.rename(index, names) if index.terms else index)
    match statement:
        case Read(result, buffer, coordinates, dtype, m, other):
            return Read(result, buffer, coordinates, dtype, mask(m), other)
        case Write(buffer, coordinates, value, mode, m):
            return Write(buffer, coordinates, operand(value), mode, mask(m))
        case Compute(result, op, operands, dtype):
            return Compute(result, op, tuple(operand(o) for o in operands), dtype)
        case Reduce(results, reduction, value, dtype):
            return Reduce(results, reduction, operand(value), dtype)
    return statement


def substitute_axes(nest: Nest, mapping: Mapping[str, Index], replacement: Mapping[str, tuple[Axis, ...]]) -> Nest:
    """The nest with axes replaced by indices over new axes; `replacement` lists the new axes in the place of an old."""
    sizes: dict[str, Dim] = axis_sizes(nest)
    for axes in replacement.values():
        sizes.update({axis.name: axis.size for axis in axes})

    def change(index: Index) -> Index:
        return ix.substitute(index, mapping, sizes) if index.terms else index

    blocks = tuple(
        Block(_replace(block.axes, replacement), tuple(map_indices(s, change) for s in block.statements))
        for block in nest.blocks
    )
    return Nest(nest.name, _replace(nest.axes, replacement), blocks, nest.origins, nest.line)


def _replace(axes: tuple[Axis, ...], replacement: Mapping[str, tuple[Axis, ...]]) -> tuple[Axis, ...]:
    return tuple(new for axis in axes for new in replacement.get(axis.name, (axis,)))
