"""Pass: drop what nothing needs."""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.graph import Ref
from stagewire.loop import Compute, Extern, IndexValue, Reduce
from stagewire.types import numel

from loopir.effects import is_ordered
from loopir.index import values_of
from loopir.nest import (
    Block,
    Item,
    Nest,
    Read,
    Schedule,
    Statement,
    Write,
    output_names,
    reads_of,
    result_names,
    writes_of,
)


@dataclass(frozen=True)
class RemoveDead:
    """Before: any schedule. After: every write reaches an output or an ordered extern, every value reaches a write,
    nests over no points are gone, and every buffer is touched."""

    name = "remove_dead"

    def run(self, schedule: Schedule) -> Schedule:
        live: set[str] = set()
        for name in output_names(schedule):
            _make_live(name, live, schedule)
        kept: list[Item] = []
        for item in reversed(schedule.items):
            alive = self._extern(item, live) if isinstance(item, Extern) else trim(item, live, schedule)
            if alive is not None:
                for name in reads_of(alive):
                    _make_live(name, live, schedule)
                kept.append(alive)
        touched = live.union(schedule.inputs, *(writes_of(item) for item in kept))
        return Schedule(
            buffers={name: buffer for name, buffer in schedule.buffers.items() if name in touched},
            inputs=schedule.inputs,
            outputs=schedule.outputs,
            items=tuple(reversed(kept)),
            decisions=schedule.decisions,
            fresh=schedule.fresh,
            private=schedule.private,
        )

    def _extern(self, item: Extern, live: set[str]) -> Extern | None:
        used = any(result in live for result in item.results)
        return item if used or is_ordered(item.target) else None


def _make_live(name: str, live: set[str], schedule: Schedule) -> None:
    """A view that is read keeps its base alive."""
    live.add(name)
    base = schedule.buffers[name].base if name in schedule.buffers else None
    if base is not None:
        live.add(base)


def trim(nest: Nest, live: set[str], schedule: Schedule) -> Nest | None:
    """The nest without writes to dead buffers; None if nothing is left."""
    if any(axis.size == 0 for axis in nest.axes):
        return None
    needed: set[str] = set()
    blocks: list[Block] = []
    for block in reversed(nest.blocks):
        if any(axis.size == 0 for axis in block.axes) and not any(isinstance(s, Reduce) for s in block.statements):
            continue
        kept: list[Statement] = []
        for statement in reversed(block.statements):
            if isinstance(statement, Write):
                alive = statement.buffer in live and numel(schedule.buffers[statement.buffer].type.shape) != 0
            else:
                alive = any(name in needed for name in result_names(statement))
            if alive:
                needed.update(used_values(statement))
                kept.append(statement)
        # a block that reads what the nest wrote into a buffer keeps that write alive
        for statement in kept:
            if isinstance(statement, Read):
                live.add(statement.buffer)
        if kept:
            blocks.append(Block(block.axes, tuple(reversed(kept))))
    if not blocks:
        return None
    return Nest(nest.name, nest.axes, tuple(reversed(blocks)), nest.origins, nest.line)


def used_values(statement: Statement) -> set[str]:
    """The SSA values that a statement uses."""
    used: set[str] = set()
    match statement:
        case Read(coordinates=coordinates, mask=mask):
            for c in coordinates:
                used |= values_of(c) if c.terms else set()
            used |= {mask.name} if mask else set()
        case Write(coordinates=coordinates, value=value, mask=mask):
            for c in coordinates:
                used |= values_of(c) if c.terms else set()
            used |= {ref.name for ref in (value, mask) if isinstance(ref, Ref)}
        case Compute(operands=operands):
            used = {operand.name for operand in operands if isinstance(operand, Ref)}
        case IndexValue(index=index):
            used = values_of(index)
        case Reduce(operand=operand):
            used = {operand.name} if isinstance(operand, Ref) else set()
    return used
