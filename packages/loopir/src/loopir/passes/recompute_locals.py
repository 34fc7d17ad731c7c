"""Pass: a buffer that lives inside one nest is recomputed where it is read, if that is cheaper than memory."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from loopir.nest import (
    Block,
    Item,
    Names,
    Nest,
    Read,
    Schedule,
    Statement,
    Write,
    makers_of,
    output_names,
    reads_of,
    result_names,
    statement_axes,
    used_values,
    writes_of,
)
from loopir.ops import OPS
from loopir.passes.expand import Expander
from loopir.rewrite import replace_values
from stagewire.graph import Ref
from stagewire.index import axes_of, values_of
from stagewire.loop import Compute, Decision, IndexValue, Scan


@dataclass(frozen=True)
class RecomputeLocals:
    """Before: a block stores a buffer that only a later block of the same nest loads, at the same point. After: where
    the value takes little arithmetic and few loads, the later block computes it again and the buffer is gone.

    heavy: cost a point from which memory is cheaper (by device type). A store costs a load more than it saves.
    """

    name = "recompute_locals"
    heavy_cpu: int = 10
    heavy_gpu: int = 60

    def run(self, schedule: Schedule) -> Schedule:
        private = _locals(schedule)
        names = Names(schedule.fresh)
        decisions: list[Decision] = []
        items: list[Item] = []
        for number, item in enumerate(schedule.items):
            for buffer in private.get(number, ()):
                cpu = schedule.buffers[buffer].type.device.startswith("cpu")
                heavy = self.heavy_cpu if cpu else self.heavy_gpu
                changed = _recompute(item, buffer, heavy, names)  # type: ignore[arg-type]
                if changed is not None:
                    item = Expander({}, names).nest(changed)  # shares what the block computes already
                    decisions.append(Decision("inlined", (buffer,), f"cheap to compute again inside {item.name}"))
            items.append(item)
        return msgspec.structs.replace(
            schedule, items=tuple(items), fresh=names.count, decisions=(*schedule.decisions, *decisions)
        )


def _locals(schedule: Schedule) -> dict[int, list[str]]:
    """By item, the buffers that this nest alone touches, in order of writing."""
    touched: dict[str, set[int]] = {name: {-1} for name in output_names(schedule)}
    for number, item in enumerate(schedule.items):
        for name in (*reads_of(item), *writes_of(item)):
            touched.setdefault(schedule.buffers[name].base or name, set()).add(number)
    found: dict[int, list[str]] = {}
    for number, item in enumerate(schedule.items):
        if isinstance(item, Nest) and len(item.blocks) > 1:
            read = set(reads_of(item))
            alone = [n for n in dict.fromkeys(writes_of(item)) if touched[n] == {number} and n in read]
            if alone:
                found[number] = alone
    return found


def _recompute(nest: Nest, buffer: str, heavy: int, names: Names) -> Nest | None:
    """The nest with the reads of `buffer` replaced by what was written, or None where that does not pay."""
    writes = [(n, s) for n, block in enumerate(nest.blocks) for s in block.statements if _touches(s, buffer, Write)]
    if len(writes) != 1:
        return None
    home, write = writes[0]
    assert isinstance(write, Write)
    readers = [n for n, block in enumerate(nest.blocks) if any(_touches(s, buffer, Read) for s in block.statements)]
    if write.mode != "set" or write.mask is not None or home in readers or not isinstance(write.value, Ref):
        return None
    needed = makers_of(nest.blocks[home], {write.value.name})
    if any(isinstance(statement, Scan) for statement in needed):
        return None  # it takes every point before
    cost = _cost(needed, nest.blocks[home])
    if cost >= heavy or any(not _same_point(nest.blocks[n], buffer, write) for n in (home, *readers)):
        return None
    if sum(_new_loads(nest, n, needed) for n in readers) > 1 + len(readers):
        return None
    blocks = list(nest.blocks)
    for number in readers:
        blocks[number] = _with_slice(blocks[number], buffer, write, needed, names)
    return msgspec.structs.replace(nest, blocks=tuple(blocks))


def _cost(needed: tuple[Statement, ...], block: Block) -> int:
    """Rough instructions at each point of the block; what does not change along its axes costs nothing."""
    changing: set[str] = set()
    axes = {axis.name for axis in block.axes}
    cost = 0
    for statement in needed:
        own = axes & statement_axes(statement)
        if own or not changing.isdisjoint(used_values(statement)):
            changing.update(result_names(statement))
            cost += OPS[statement.op].cost if isinstance(statement, Compute) else 0
    return cost


def _touches(statement: Statement, buffer: str, kind: type[Read] | type[Write]) -> bool:
    return isinstance(statement, kind) and statement.buffer == buffer


def _same_point(block: Block, buffer: str, write: Write) -> bool:
    """Whether every point of the block has an element of its own, and reads no other."""
    axes = {axis.name for axis in block.axes}
    used = {name for coordinate in write.coordinates for name in axes_of(coordinate)}
    reads = [s for s in block.statements if isinstance(s, Read) and s.buffer == buffer]
    return axes <= used and all(s.coordinates == write.coordinates and s.mask is None for s in reads)


def _new_loads(nest: Nest, number: int, needed: tuple[Statement, ...]) -> int:
    """Loads of the slice that the block does not make anyway, and that change along its own axes."""
    block = nest.blocks[number]
    axes = {axis.name for axis in block.axes}
    present = {(s.buffer, s.coordinates) for s in block.statements if isinstance(s, Read)}
    return sum(
        (s.buffer, s.coordinates) not in present
        and (bool(statement_axes(s) & axes) or any(values_of(c) for c in s.coordinates if c.terms))
        for s in needed
        if isinstance(s, Read)
    )


def _with_slice(block: Block, buffer: str, write: Write, needed: tuple[Statement, ...], names: Names) -> Block:
    copies = {name: Ref(names("v")) for s in needed for name in result_names(s)}
    assert isinstance(write.value, Ref)
    value = copies.get(write.value.name, write.value)
    gone = {s.result: value for s in block.statements if isinstance(s, Read) and s.buffer == buffer}
    kept = [replace_values(s, gone) for s in block.statements if not _touches(s, buffer, Read)]
    return Block(block.axes, (*(_named(replace_values(s, copies), copies) for s in needed), *kept))


def _named(statement: Statement, copies: dict[str, Ref]) -> Statement:
    """The statement under the new name of its result."""
    assert isinstance(statement, Read | Compute | IndexValue)
    return msgspec.structs.replace(statement, result=copies[statement.result].name)
