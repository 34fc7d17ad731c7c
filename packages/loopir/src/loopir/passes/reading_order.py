"""In which order of its dimensions a buffer is read by most of its readers."""

from __future__ import annotations

from collections.abc import Container

from loopir.schedule import Schedule
from stagewire import index as ix
from stagewire.loop import Kernel, Load
from stagewire.sizes import estimate
from stagewire.types import numel

MANY = 8
"""Readers of each element from which their order matters more than that of what writes the buffer."""


def reading_orders(schedule: Schedule, free: Container[str]) -> dict[str, tuple[int, ...]]:
    """Of the buffers among `free` that are read many times over: the dimensions, slowest first, as readers go on."""
    votes: dict[str, dict[tuple[int, ...] | None, int]] = {}
    for item in schedule.items:
        if not isinstance(item, Kernel):
            continue
        for section in item.sections:
            axes = (*item.axes, *section.axes)
            reads = [s for s in section.statements if isinstance(s, Load) and len(s.index) > 1 and s.buffer in free]
            if not reads:
                continue
            place = {axis.name: number for number, axis in enumerate(axes)}
            points = estimate(numel(tuple([axis.size for axis in axes])))
            for read in reads:
                order, found = _order(read, place), votes.setdefault(read.buffer, {})
                found[order] = found.get(order, 0) + points
    orders: dict[str, tuple[int, ...]] = {}
    for name, found in votes.items():
        order = max(found, key=lambda one: found[one])
        points, elements = sum(found.values()), estimate(numel(schedule.buffers[name].type.shape))
        if order is not None and points >= MANY * elements and 2 * found[order] > points:
            orders[name] = order
    return orders


def _order(read: Load, place: dict[str, int]) -> tuple[int, ...] | None:
    """The dimensions by the fastest axis that each runs along; None where something else than axes says the place."""
    if not all(ix.is_plain(coordinate) for coordinate in read.index):
        return None
    speed = [max((place[name] for name in ix.axes_of(one)), default=-1) for one in read.index]
    return tuple(sorted(range(len(speed)), key=lambda d: (speed[d], d)))
