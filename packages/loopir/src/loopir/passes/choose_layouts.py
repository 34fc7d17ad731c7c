"""Pass: give every kernel buffer its strides in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from loopir.layout import densified, packed, repeated_dims
from loopir.passes.alias_views import window_of
from loopir.passes.channels_last import is_image, is_last
from loopir.schedule import Item, Schedule, output_names, read_by_calls, substitute_axes
from stagewire import index as ix
from stagewire.loop import Axis, Buffer, Kernel, Load, Store
from stagewire.sizes import estimate
from stagewire.statements import map_buffers, points_of, reads_of, statements_of, writes_of
from stagewire.types import TensorType, numel


@dataclass(frozen=True)
class ChooseLayouts:
    """Before: kernel buffers have the strides that eager would give them. After: outputs and operands of externs have
    exactly those; every other buffer is dense, its dimensions in the same order, or where each element is read many
    times, in that of its readers (images whose channels are fastest stay so). An expanded tensor (stride 0) is computed
    once and repeated by a view. What was a window on something larger is dense where a kernel writes it for ATen alone:
    it would be allocated with its gaps."""

    name = "choose_layouts"

    def run(self, schedule: Schedule) -> Schedule:
        outputs = output_names(schedule)
        exact = outputs | read_by_calls(schedule)
        seers = (one for one in schedule.calls if not one.target.startswith("aten.") or "as_strided" in one.target)
        strict = outputs.union(*map(reads_of, seers))  # whose strides somebody sees
        writers: dict[str, list[int]] = {}
        for number, item in enumerate(schedule.items):
            if isinstance(item, Kernel):
                for name in writes_of(item):
                    writers.setdefault(name, []).append(number)
        buffers: dict[str, Buffer] = {}
        kept = {name for name, buffer in schedule.buffers.items() if buffer.role != "kernel" or _is_turned(buffer.type)}
        orders = reading_orders(schedule, schedule.buffers.keys() - kept - exact)
        gaps: list[str] = []
        items = list(schedule.items)
        for name, buffer in schedule.buffers.items():
            if buffer.role != "kernel":
                buffers[name] = buffer
            elif name in orders:
                buffers[name] = Buffer(name, packed(buffer.type, buffer.type.shape, orders[name]), "kernel")
            elif name not in exact:
                buffers[name] = Buffer(name, densified(buffer.type), "kernel")
            elif not repeated_dims(buffer.type) or not _shrink(items, writers.get(name, []), buffer, buffers):
                type = replace(buffer.type, storage_offset=0)
                buffers[name] = Buffer(name, type, "kernel")
                if name not in strict and not repeated_dims(type):
                    gaps.append(name)
        for name in gaps:
            written = [item for number in writers.get(name, []) if isinstance(item := items[number], Kernel)]
            if not any(window_of(nest, buffers) for nest in written):
                buffers[name] = Buffer(name, densified(buffers[name].type), "kernel")
        return replace(schedule, buffers=buffers, items=tuple(items))


def _is_turned(type: TensorType) -> bool:
    """Whether this is an image whose channels are fastest."""
    return is_image(type) and is_last(type) and type.shape[1] != 1


def _shrink(items: list[Item], writers: list[int], buffer: Buffer, buffers: dict[str, Buffer]) -> bool:
    """Compute one copy of a repeated buffer and declare the buffer a view of it; False where that is not simple."""
    if len(writers) != 1:
        return False
    nest = items[writers[0]]
    assert isinstance(nest, Kernel)
    statements = tuple(statements_of(nest))
    writes = [s for s in statements if isinstance(s, Store)]
    if len(nest.sections) != 1 or nest.sections[0].axes or len(writes) != 1:
        return False
    if any(isinstance(s, Load) and s.buffer == buffer.name for s in statements):
        return False
    repeated = repeated_dims(buffer.type)
    axes = [ix.single_axis(writes[0].index[d]) for d in repeated]
    if any(axis is None for axis in axes):
        return False
    base = f"{buffer.name}_once"
    once = substitute_axes(nest, {a: ix.ZERO for a in axes if a}, {a: () for a in axes if a})
    items[writers[0]] = map_buffers(once, {buffer.name: base})
    shape = tuple(1 if d in repeated else size for d, size in enumerate(buffer.type.shape))
    stride = tuple(step if step != 0 else 1 for step in buffer.type.stride)
    buffers[base] = Buffer(base, replace(buffer.type, shape=shape, stride=stride, storage_offset=0), "kernel")
    buffers[buffer.name] = Buffer(buffer.name, replace(buffer.type, storage_offset=0), "view", base)
    return True


MANY = 8
"""Readers of each element from which their order matters more than that of what writes the buffer."""


def reading_orders(schedule: Schedule, free: Container[str]) -> dict[str, tuple[int, ...]]:
    """Of the buffers among `free` that are read many times over: the dimensions, slowest first, as readers go on."""
    votes: dict[str, Counter[tuple[int, ...] | None]] = {}
    for section, outer in ((section, nest) for nest in schedule.kernels for section in nest.sections):
        reads = [s for s in section.statements if isinstance(s, Load) and len(s.index) > 1 and s.buffer in free]
        axes = (*_by_memory(outer, schedule.buffers), *section.axes) if reads else ()
        place = {axis.name: number for number, axis in enumerate(axes)}
        for read in reads:
            order, found = _order(read, place), votes.setdefault(read.buffer, Counter())
            found[order] += estimate(points_of(axes))
    orders: dict[str, tuple[int, ...]] = {}
    for name, found in votes.items():
        order = max(found, key=lambda one: found[one])
        points, elements = sum(found.values()), estimate(numel(schedule.buffers[name].type.shape))
        if order is not None and points >= MANY * elements and 2 * found[order] > points:
            orders[name] = order
    return orders


def _by_memory(nest: Kernel, buffers: Mapping[str, Buffer]) -> tuple[Axis, ...]:
    """The outer axes of a nest, slowest first, as it goes over what it writes: on a CPU `order_axes` sees to that."""
    write = next((s for s in statements_of(nest) if isinstance(s, Store)), None)
    if write is None or buffers[write.buffer].type.device != "cpu":
        return nest.axes
    place = ix.linear(write.index, buffers[write.buffer].type.stride)
    steps = {axis: ix.coefficient(place, axis.name) for axis in nest.axes}
    return tuple(sorted(nest.axes, key=lambda axis: -estimate(steps[axis]))) if all(steps.values()) else nest.axes  # type: ignore[arg-type]


def _order(read: Load, place: dict[str, int]) -> tuple[int, ...] | None:
    """The dimensions by the fastest axis that each runs along; None where something else than axes says the place."""
    if not all(ix.is_plain(coordinate) for coordinate in read.index):
        return None
    speed = [max((place[name] for name in ix.axes_of(one)), default=-1) for one in read.index]
    return tuple(sorted(range(len(speed)), key=lambda d: (speed[d], d)))
