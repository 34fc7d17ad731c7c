"""L8: a buffer takes over the memory of one that is dead, by what steps read and write. L5 by element: an element of
memory is written before it is read; what is not known counts as written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stagewire import index as ix
from stagewire.graph import Ref, references
from stagewire.index import axes_of, rename
from stagewire.loop import Axis, AxisAtom, Buffer, Extern, Free, Index, Kernel, Load, LoopGraph, Step, Store
from stagewire.statements import accesses, reads_of, select, writes_of
from stagewire.types import ITEM_SIZE, extent
from stagewire.verify.fault import Fault, Faults, Path
from stagewire.verify.kernels import MOST_POINTS, Sizes, section_axes, values_at
from stagewire.verify.types import byte_size, is_laid_out

_MOST_ELEMENTS = 1 << 24


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
    added = select(step.sections, Store) if isinstance(step, Kernel) else []
    return {*reads_of(step), *[one.buffer for one in added if one.mode == "atomic_add"]}, set(writes_of(step))


def owner_of(name: str, buffers: dict[str, Buffer]) -> str:
    """The buffer whose memory this one uses."""
    return buffers[name].base or name


def check_elements(graph: LoopGraph, buffers: dict[str, Buffer], path: Path) -> Faults:
    memory = _Memory(buffers)
    for position, step in enumerate(graph.steps):
        where = (*path, "steps", position)
        match step:
            case Kernel():
                yield from _check_kernel(step, memory, where)
            case Extern():
                for name in reads_of(step):
                    yield from memory.read_all(name, where)
                for name in writes_of(step):
                    memory.forget(name)
            case Free(name):
                memory.forget(name)
    for name in [name for output in graph.outputs for name in references(output)]:
        yield from memory.read_all(name, (*path, "outputs"))


def _check_kernel(kernel: Kernel, memory: _Memory, path: Path) -> Faults:
    """What a section stores is there in later ones (of the same point: that is not looked at)."""
    for position, section in enumerate(kernel.sections):
        axes = {axis.name: axis.size for axis in (*kernel.axes, *section.axes)}
        for number, statement in enumerate(section.statements):
            match statement:
                case Load(buffer=buffer, index=index, mask=None) | Store(buffer, index, _, "atomic_add", None):
                    where = (*path, "sections", position, "statements", number)
                    yield from memory.read(buffer, _elements(index, axes), where)
        for statement in section.statements:
            if isinstance(statement, Store) and statement.mode != "atomic_add":
                memory.write(statement.buffer, None if statement.mask is not None else _elements(statement.index, axes))


class _Memory:
    """A byte for each element, 1 where it was written, of the buffers of kernels of which some element was not."""

    def __init__(self, buffers: dict[str, Buffer]) -> None:
        self.buffers = buffers
        self.partly: dict[str, bytearray] = {}
        self.written = {one.name for one in buffers.values() if one.role != "kernel"}
        for one in buffers.values():
            in_place = one.reuse is not None and buffers[one.reuse].role == "input"
            if in_place or not is_laid_out(one.type) or not 0 < extent(one.type) <= _MOST_ELEMENTS:  # type: ignore[operator]
                self.written.add(one.name)

    def forget(self, name: str) -> None:
        """From here on, all of it counts as written."""
        self.partly.pop(name, None)
        self.written.add(name)

    def write(self, name: str, elements: Sequence[range] | None) -> None:
        """These elements are written; None: which ones is not known."""
        owner = owner_of(name, self.buffers)
        if owner in self.written:
            return
        size: int = extent(self.buffers[owner].type)  # type: ignore[assignment]
        if elements is None or owner != name or not all(one.start >= 0 and one[-1] < size for one in elements):
            self.forget(owner)
            return
        if owner not in self.partly:
            self.partly[owner] = bytearray(size)
        partly = self.partly[owner]
        for one in elements:
            partly[one.start : one[-1] + 1 : one.step] = b"\1" * len(one)
        if 0 not in partly:
            self.forget(owner)

    def read(self, name: str, elements: Sequence[range] | None, path: Path) -> Faults:
        owner, type_ = self.buffers[owner_of(name, self.buffers)], self.buffers[name].type
        partly = self.partly.get(owner.name)
        if partly is None or elements is None or not is_laid_out(type_):
            return
        if ITEM_SIZE[type_.dtype] != ITEM_SIZE[owner.type.dtype]:
            return
        shift: int = type_.storage_offset - owner.type.storage_offset  # type: ignore[assignment]
        for one in elements:
            found = partly[shift + one.start : shift + one[-1] + 1 : one.step].find(0) if shift + one.start >= 0 else -1
            if found >= 0:
                yield Fault("L5", f"element {one[found]} of %{name} is read before anything writes it", path)
                return

    def read_all(self, name: str, path: Path) -> Faults:
        """Each element of the tensor is read."""
        type_ = self.buffers[name].type
        if is_laid_out(type_):
            axes = tuple(Axis(f"d{number}", size) for number, size in enumerate(type_.shape))
            index = ix.linear([ix.axis(axis.name) for axis in axes], type_.stride)
            yield from self.read(name, _elements(index, {axis.name: axis.size for axis in axes}), path)


def _elements(index: Index, sizes: Sizes) -> list[range] | None:
    """The values of an index at all points; None where they are not known, or are no few ranges."""
    counts = {name: size for name, size in sizes.items() if isinstance(size, int)}
    if ix.has_values(index) or not ix.is_static(index) or not ix.axes_of(index) <= counts.keys() == sizes.keys():
        return None
    if 0 in counts.values():
        return []
    bent = ix.axes_of(Index(0, tuple(term for term in index.terms if not isinstance(term.atom, AxisAtom))))
    straight = {name: int(step) for name, step in ix.steps(index).items() if name not in bent}  # type: ignore[arg-type]
    if math.prod(counts[name] for name in bent) > MOST_POINTS:
        return None
    others = Index(index.constant, tuple(t for t in index.terms if getattr(t.atom, "name", None) not in straight))
    starts = sorted({value for (value,) in values_at((others,), {name: counts[name] for name in bent})})
    low = sum(min(0, step * (counts[name] - 1)) for name, step in straight.items())
    *outer, (step, count) = _spans((abs(step), counts[name]) for name, step in straight.items())
    if not starts or len(starts) * math.prod(many for _, many in outer) > MOST_POINTS:  # none: it divides by zero
        return None
    offsets = itertools.product(starts, *(range(0, one * many, one) for one, many in outer))
    return [range(first := low + sum(point), first + step * count, step) for point in offsets]


def _spans(steps: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pairs (step, count) of as few progressions whose sums are the same numbers; the longest last.

    >>> _spans([(12, 5), (1, 4), (4, 3)])
    [(1, 60)]
    >>> _spans([(1, 4), (8, 3)])
    [(8, 3), (1, 4)]
    """
    spans = [(1, 1)]
    for step, count in sorted(steps):
        inner, reached = spans[-1]
        if step == 0 or count == 1:
            continue
        if step % inner == 0 and step <= inner * reached:
            spans[-1] = inner, reached + (count - 1) * (step // inner)
        else:
            spans.append((step, count))
    return sorted(spans, key=lambda span: span[1])
