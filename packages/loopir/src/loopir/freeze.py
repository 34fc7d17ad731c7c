"""Schedule to stagewire's `LoopGraph`: coordinates become offsets in memory, names become short and local."""

from __future__ import annotations

from collections.abc import Mapping

from loopir.nest import Block, Nest, Read, Schedule, Write, axis_sizes, result_names, statements_of
from loopir.nest import Statement as NestStatement
from stagewire import index as ix
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    Buffer,
    Compute,
    Extern,
    Index,
    IndexValue,
    Kernel,
    Load,
    LoopGraph,
    Operand,
    Reduce,
    Scan,
    Section,
    Statement,
    Step,
    Store,
)


def freeze(schedule: Schedule) -> LoopGraph:
    """The loop graph; buffers that nothing touches are dropped, steps and decisions kept in order."""
    steps: list[Step] = []
    for number, item in enumerate(schedule.items):
        steps.append(item if isinstance(item, Extern) else freeze_nest(item, schedule.buffers, f"kernel{number}"))
    return LoopGraph(
        buffers=tuple(schedule.buffers.values()),
        inputs=schedule.inputs,
        outputs=schedule.outputs,
        steps=tuple(steps),
        decisions=schedule.decisions,
        symbols=schedule.symbols,
    )


def freeze_nest(nest: Nest, buffers: Mapping[str, Buffer], name: str) -> Kernel:
    """One kernel. Outer axes are i0, i1..., inner ones r0, r1..., values v0, v1..."""
    axes = {axis.name: f"i{n}" for n, axis in enumerate(nest.axes)}
    inner = 0
    for block in nest.blocks:
        for axis in block.axes:
            if axis.name not in axes:
                axes[axis.name] = f"r{inner}"
                inner += 1
    values: dict[str, str] = {}
    for statement in statements_of(nest):
        for result in result_names(statement):
            values[result] = f"v{len(values)}"
    freezer = _Freezer(buffers, {**axes, **values}, axis_sizes(nest))
    return Kernel(
        name,
        tuple(Axis(axes[a.name], a.size) for a in nest.axes),
        tuple(freezer.section(block) for block in nest.blocks),
        nest.origins,
        nest.line,
    )


class _Freezer:
    def __init__(self, buffers: Mapping[str, Buffer], names: dict[str, str], sizes: ix.Sizes) -> None:
        self.buffers = buffers
        self.names = names
        self.sizes = sizes

    def section(self, block: Block) -> Section:
        axes = tuple(Axis(self.names[a.name], a.size) for a in block.axes)
        return Section(axes, tuple(self.statement(s) for s in block.statements))

    def statement(self, statement: NestStatement) -> Statement:
        match statement:
            case Read(result, buffer, coordinates, dtype, mask, other):
                offset = self.offset(buffer, coordinates)
                return Load(self.names[result], buffer, offset, dtype, self.ref(mask), other)
            case Write(buffer, coordinates, value, mode, mask):
                return Store(buffer, self.offset(buffer, coordinates), self.operand(value), mode, self.ref(mask))
            case Compute(result, op, operands, dtype):
                return Compute(self.names[result], op, tuple(self.operand(o) for o in operands), dtype)
            case IndexValue(result, index, dtype):
                return IndexValue(self.names[result], self.rename(index), dtype)
            case Reduce(results, reduction, operand, dtype):
                return Reduce(tuple(self.names[r] for r in results), reduction, self.operand(operand), dtype)
            case Scan(result, scan, operand, dtype):
                return Scan(self.names[result], scan, self.operand(operand), dtype)

    def offset(self, buffer: str, coordinates: tuple[Index, ...]) -> Index:
        return self.rename(ix.linear(coordinates, self.buffers[buffer].type.stride))

    def rename(self, index: Index) -> Index:
        return ix.rename(index, self.names) if index.terms else index

    def operand(self, operand: Operand) -> Operand:
        return Ref(self.names[operand.name]) if isinstance(operand, Ref) else operand

    def ref(self, mask: Ref | None) -> Ref | None:
        return None if mask is None else Ref(self.names[mask.name])
