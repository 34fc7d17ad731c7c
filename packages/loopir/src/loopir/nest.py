"""Nests: loop kernels before memory layout is fixed. All data; what the passes read and rewrite.

    schedule ::= buffer* item*                 item  ::= nest | extern
    nest     ::= name axis* block*             the axes are parallel; blocks run in order at each outer point
    block    ::= axis* statement*              the statements run at every point of the block's own axes
    statement::= read | write | compute | index_value | reduce | scan

A read or write names an element by coordinates (one index per dimension of the buffer) instead of an offset in
memory; `loopir.freeze` multiplies them with the strides chosen for the buffer and gives stagewire's `LoopGraph`.
Names of axes and values are unique in the whole schedule. A buffer may be written by several nests (the pieces of a
concatenation; a copy, then a scatter); every read of it comes after all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from stagewire.expr import Dim
from stagewire.graph import Arg, Ref, SourceLine, references
from stagewire.index import add_values, axes_of
from stagewire.loop import Axis, Buffer, Compute, Decision, Extern, Index, IndexValue, Operand, Reduce, Scan, StoreMode
from stagewire.types import DType


class Read(msgspec.Struct, frozen=True, gc=False):
    """result = buffer[coordinates]; with a mask, `other` where it is false, and no access is made there."""

    result: str
    buffer: str
    coordinates: tuple[Index, ...]
    dtype: DType
    mask: Ref | None = None
    other: Operand = 0


class Write(msgspec.Struct, frozen=True, gc=False):
    """buffer[coordinates] = value, or += where points may collide, or the sum of what all points with them have."""

    buffer: str
    coordinates: tuple[Index, ...]
    value: Operand
    mode: StoreMode = "set"
    mask: Ref | None = None


Statement = Read | Write | Compute | IndexValue | Reduce | Scan


class Block(msgspec.Struct, frozen=True):
    axes: tuple[Axis, ...]
    statements: tuple[Statement, ...]


class Nest(msgspec.Struct, frozen=True):
    """A loop kernel; `origins` are the prim values it computes."""

    name: str
    axes: tuple[Axis, ...]
    blocks: tuple[Block, ...]
    origins: tuple[str, ...] = ()
    line: SourceLine | None = None


Item = Nest | Extern


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """What the passes rewrite: buffers with their types, items in order of execution, and what was decided so far.

    `fresh` is the first number not used in a name; `private` are the positions of outputs that no user sees
    (saved activations), which may share memory with each other; `symbols` are the inputs that are integers. `ending`
    are inputs whose memory ends with their last use; `updated` outputs that may lie in the memory of an input. `hints`
    are for choices that depend on how large symbolic sizes are.
    """

    buffers: dict[str, Buffer]
    inputs: tuple[str, ...]
    outputs: tuple[Arg, ...]
    items: tuple[Item, ...]
    decisions: tuple[Decision, ...] = ()
    fresh: int = 0
    private: frozenset[int] = frozenset()
    symbols: tuple[str, ...] = ()
    ending: frozenset[str] = frozenset()
    updated: frozenset[str] = frozenset()
    hints: dict[str, int] = {}


class Names:
    """A supply of unused names; the one mutable thing a pass carries, dead when the pass returns."""

    __slots__ = ("count",)

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def __call__(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count - 1}"


def statements_of(nest: Nest) -> Iterator[Statement]:
    """Every statement, in order."""
    for block in nest.blocks:
        yield from block.statements


def reads_of(item: Item) -> list[str]:
    """Names of the buffers that an item reads, with repetitions."""
    if isinstance(item, Extern):
        return [name for arg in (*item.args, *item.kwargs.values()) for name in references(arg)]
    return [one.buffer for block in item.blocks for one in block.statements if one.__class__ is Read]  # type: ignore[union-attr]


def writes_of(item: Item) -> list[str]:
    """Names of the buffers that an item writes, with repetitions."""
    if isinstance(item, Extern):
        return [name for name in item.results if name]
    return [one.buffer for block in item.blocks for one in block.statements if one.__class__ is Write]  # type: ignore[union-attr]


def read_elsewhere(schedule: Schedule) -> frozenset[str]:
    """The buffers that a nest reads which writes on another device: numbers of the CPU."""
    devices = {name: buffer.type.device for name, buffer in schedule.buffers.items()}
    if len(set(devices.values())) < 2:
        return frozenset()
    nests = [item for item in schedule.items if isinstance(item, Nest)]
    return frozenset(
        n for nest in nests for w in writes_of(nest)[:1] for n in reads_of(nest) if devices[n] != devices[w]
    )


def axis_sizes(nest: Nest) -> dict[str, Dim]:
    """The size of every axis of the nest, inner ones too."""
    sizes = {axis.name: axis.size for axis in nest.axes}
    for block in nest.blocks:
        for axis in block.axes:
            sizes[axis.name] = axis.size
    return sizes


def public_outputs(schedule: Schedule) -> frozenset[str]:
    """Names of the buffers that the user gets: those that only the backward reads may be laid out as is best."""
    seen = (arg for place, arg in enumerate(schedule.outputs) if place not in schedule.private)
    return frozenset(name for arg in seen for name in references(arg))


def output_names(schedule: Schedule) -> frozenset[str]:
    """Names of the buffers that the graph returns."""
    return frozenset(name for arg in schedule.outputs for name in references(arg))


def result_names(statement: Statement) -> tuple[str, ...]:
    """The values that a statement defines."""
    match statement:
        case Write():
            return ()
        case Reduce(results=results):
            return results
        case _:
            return (statement.result,)


def keeps_order(statements: Iterable[object]) -> bool:
    """Whether it matters in which order the inner axes around these statements run: a result counts or adds them up."""
    return any(
        isinstance(s, Scan) or (isinstance(s, Reduce) and s.reduction in ("argmax", "argmin")) for s in statements
    )


def used_values(statement: Statement) -> set[str]:
    """The SSA values that a statement uses."""
    used: set[str] = set()
    add_used_values(statement, used)
    return used


def add_used_values(statement: Statement, used: set[str]) -> None:
    """Put the SSA values that a statement uses into `used`."""
    kind = statement.__class__
    if kind is Compute:
        for operand in statement.operands:  # type: ignore[union-attr]
            if operand.__class__ is Ref:
                used.add(operand.name)  # type: ignore[union-attr]
    elif kind is Read or kind is Write:
        for coordinate in statement.coordinates:  # type: ignore[union-attr]
            if coordinate.terms:
                add_values(coordinate, used)
        mask = statement.mask  # type: ignore[union-attr]
        if mask is not None:
            used.add(mask.name)
        if kind is Write and statement.value.__class__ is Ref:  # type: ignore[union-attr]
            used.add(statement.value.name)  # type: ignore[union-attr]
    elif kind is IndexValue:
        add_values(statement.index, used)  # type: ignore[union-attr]
    elif (kind is Reduce or kind is Scan) and statement.operand.__class__ is Ref:  # type: ignore[union-attr]
        used.add(statement.operand.name)  # type: ignore[union-attr]


def statement_axes(statement: Statement) -> set[str]:
    """The axes that the indices of a statement name."""
    match statement:
        case Read(coordinates=coordinates) | Write(coordinates=coordinates):
            return {name for coordinate in coordinates for name in axes_of(coordinate)}
        case IndexValue(index=index):
            return axes_of(index)
    return set()


def makers_of(block: Block, values: set[str]) -> tuple[Statement, ...]:
    """The statements of a block that these values need, in order; a reduction's result is there behind the block."""
    needed = set(values)
    found: list[Statement] = []
    for statement in reversed(block.statements):
        if not needed.isdisjoint(result_names(statement)) and not isinstance(statement, Reduce):
            needed |= used_values(statement)
            found.append(statement)
    return tuple(reversed(found))
