"""What passes share that make several nests of a long one, so that a GPU has enough to do side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from loopir.schedule import Item, Names, Schedule, writes_of
from stagewire import index as ix
from stagewire.expr import Dim
from stagewire.loop import Axis, Buffer, Decision, Kernel, Load, Section
from stagewire.sizes import Hints
from stagewire.types import DType, contiguous, numel


@dataclass
class Splitting:
    """What grows while nests are split."""

    buffers: dict[str, Buffer]
    names: Names
    hints: Hints
    decisions: list[Decision] = field(default_factory=list)

    def add_buffer(self, nest: Kernel, suffix: str, dtype: DType, shape: tuple[Dim, ...]) -> str:
        """A row-major buffer on the device that the nest writes on; its name."""
        name = f"{nest.name}_{suffix}"
        device = self.buffers[writes_of(nest)[0]].type.device
        self.buffers[name] = Buffer(name, contiguous(dtype, shape, device), "kernel")
        return name


def split_nests(schedule: Schedule, split: Callable[[Kernel, Splitting], Iterable[Kernel] | None]) -> Schedule:
    """The schedule with what `split` makes of each nest in its place; None: the nest stays."""
    state = Splitting(dict(schedule.buffers), Names(schedule.fresh), schedule.hints)
    items: list[Item] = []
    for item in schedule.items:
        found = split(item, state) if isinstance(item, Kernel) else None
        items.extend(found or (item,))
    return msgspec.structs.replace(
        schedule,
        buffers=state.buffers,
        items=tuple(items),
        fresh=state.names.count,
        decisions=(*schedule.decisions, *state.decisions),
    )


def divisor(size: Dim, most: int) -> int:
    """The greatest divisor of a size that is at most so much."""
    assert isinstance(size, int)
    return max(d for d in range(1, min(most, size) + 1) if size % d == 0)


def points_of(axes: tuple[Axis, ...]) -> Dim:
    """How many points a loop nest has."""
    return numel(tuple(axis.size for axis in axes))


class Ways(NamedTuple):
    """The axes of a loop along which memory runs, and the outer ones, in loads that vary with both."""

    rows: frozenset[str]
    columns: frozenset[str]


def ways_of(nest: Kernel, section: Section, buffers: Mapping[str, Buffer]) -> Ways:
    """Along what memory runs in a loop of a nest."""
    inner, outer = {axis.name for axis in section.axes}, {axis.name for axis in nest.axes}
    rows, columns = set[str](), set[str]()
    for statement in section.statements:
        if isinstance(statement, Load):
            offset = ix.linear(statement.index, buffers[statement.buffer].type.stride)
            steps = ix.steps(offset)
            is_shared = outer and not outer & set(steps)  # by all outer points
            if not is_shared:
                rows |= {name for name in inner if steps.get(name) == 1}
            if not inner.isdisjoint(steps):
                columns |= {name for name in outer if steps.get(name) == 1}
    return Ways(frozenset(rows), frozenset(columns))


def is_on_gpu(nest: Kernel, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a nest writes memory of a GPU."""
    written = writes_of(nest)
    return bool(written) and not buffers[written[0]].type.device.startswith("cpu")
