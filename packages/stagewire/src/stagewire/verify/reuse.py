"""L8: a buffer takes over the memory of one that is dead, by what steps read and write."""

from __future__ import annotations

from typing import NamedTuple

from stagewire.graph import Ref, references
from stagewire.index import axes_of, rename
from stagewire.loop import Buffer, Extern, Free, Index, Kernel, Load, LoopGraph, Step, Store
from stagewire.statements import accesses
from stagewire.types import ITEM_SIZE
from stagewire.verify.fault import Fault, Faults, Path
from stagewire.verify.kernels import section_axes
from stagewire.verify.types import byte_size


class _Uses(NamedTuple):
    """Positions of steps by buffer, views counted as their base: the first that writes it, the last that uses it."""

    first_write: dict[str, int]
    last: dict[str, int]


def _uses(traffic: tuple[Traffic, ...], buffers: dict[str, Buffer]) -> _Uses:
    found = _Uses({}, {})
    for position, (reads, writes) in enumerate(traffic):
        for name in writes:
            found.first_write.setdefault(owner_of(name, buffers), position)
        for name in reads | writes:
            found.last[owner_of(name, buffers)] = position
    return found


def check_reuse(graph: LoopGraph, buffers: dict[str, Buffer], traffic: tuple[Traffic, ...], path: Path) -> Faults:
    """L8."""
    uses = _uses(traffic, buffers)
    outputs = {owner_of(name, buffers) for output in graph.outputs for name in references(output)}
    taken: set[str] = set()
    updates = {(graph.outputs[number], name) for number, name in graph.updates if number < len(graph.outputs)}
    for position, buffer in enumerate(graph.buffers):
        if buffer.reuse is None:
            continue
        where = (*path, "buffers", position)
        old = buffers[buffer.reuse]
        size, old_size = byte_size(buffer.type), byte_size(old.type)
        if size != old_size:
            yield Fault("L8", f"%{buffer.name} has {size} bytes, %{old.name} has {old_size}", where)
        updated = (Ref(buffer.name), old.name) in updates
        if (old.role == "input" and not updated) or old.role == "view" or old.name in outputs or old.name in taken:
            yield Fault("L8", f"%{old.name} is an input, a view, an output, or taken by another", where)
        taken.add(old.name)
        yield from _check_dead(graph, uses, buffer, old, where)


def _check_dead(graph: LoopGraph, uses: _Uses, new: Buffer, old: Buffer, path: Path) -> Faults:
    first, last = uses.first_write.get(new.name), uses.last.get(old.name, -1)
    if first is None or last < first:
        return
    step = graph.steps[first]
    if last > first:
        yield Fault("L8", f"%{old.name} is used after %{new.name} took its memory", path)
    elif not (isinstance(step, Kernel) and _same_place(step, old, new)):
        yield Fault("L8", f"%{old.name} is read in place of %{new.name} at another index", path)


def _same_place(kernel: Kernel, old: Buffer, new: Buffer) -> bool:
    """True where every point loads `old` only at the index at which it stores `new`, not after, in equal items."""
    places: set[Index] = set()
    loads: list[tuple[int, int]] = []
    stores: list[tuple[int, int]] = []
    for position, number, statement in accesses(kernel):
        if statement.buffer not in (old.name, new.name):
            continue
        if isinstance(statement, Store) and statement.buffer == old.name:
            return False
        if isinstance(statement, Store):
            stores.append((position, number))
        elif statement.buffer == old.name:
            loads.append((position, number))
        places.add(_renamed(statement.index, section_axes(kernel, kernel.sections[position])))
    if len(places) != 1 or not loads or not stores or max(loads) > min(stores):
        return False
    outer = {axis.name for axis in kernel.axes if axis.size != 1}
    same_item = ITEM_SIZE[old.type.dtype] == ITEM_SIZE[new.type.dtype]
    return same_item and outer <= axes_of(next(iter(places)))


def _renamed(index: Index, names: dict[str, str]) -> Index:
    """The index with its axes renamed and its terms in a canonical order."""
    renamed = rename(index, names)
    return Index(index.constant, tuple(sorted(renamed.terms, key=repr)))


Traffic = tuple[set[str], set[str]]
"""Names of the buffers that a step reads, and of those that it writes."""


def reads_and_writes(step: Step) -> Traffic:
    """Names of the buffers that a step reads and writes."""
    match step:
        case Kernel():
            reads = {s.buffer for _, _, s in accesses(step) if isinstance(s, Load) or s.mode == "atomic_add"}
            return reads, {s.buffer for _, _, s in accesses(step) if isinstance(s, Store)}
        case Extern():
            names = {name for arg in (*step.args, *step.kwargs.values()) for name in references(arg)}
            return names, {name for name in step.results if name}
        case Free():
            return set(), set()


def owner_of(name: str, buffers: dict[str, Buffer]) -> str:
    """The buffer whose memory this one uses."""
    return buffers[name].base or name
