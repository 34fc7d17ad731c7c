"""Schedules: what the passes read and rewrite, kernels before memory is laid out and calls in order of execution.

    schedule ::= buffer* item*                 item ::= kernel | extern, those of `stagewire.loop`

Until `freeze`, a load or store names its element by coordinates: its `index` is a tuple, one for each dimension of the
buffer. `freeze` multiplies them with the strides chosen for the buffer, which gives offsets, and shortens names.
Names of axes and values are unique in the whole schedule. A buffer may be written by several kernels (the pieces of a
concatenation; a copy, then a scatter); every read of it comes after all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from stagewire import index as ix
from stagewire import loop
from stagewire.expr import Dim
from stagewire.graph import Arg, references
from stagewire.statements import (
    add_used_values,
    map_indices,
    map_statements,
    reads_of,
    rename,
    results,
    statements_of,
    writes_of,
)
from stagewire.types import DType, contiguous

Item = loop.Kernel | loop.Extern


class Tail(NamedTuple):
    """The axes of tiles and of the elements of each, of which the last tiles may lie behind the end of the whole axis.

    size: of the whole axis.
    """

    part: loop.Axis
    inside: loop.Axis
    size: Dim

    @property
    def left(self) -> loop.Index:
        """What is left of the axis at the start of a tile: the same for all of it."""
        return ix.shift(ix.scale(ix.axis(self.part.name), -self.inside.size), self.size)


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """What the passes rewrite: buffers with their types, items in order of execution, and what was decided so far.

    `fresh` is the first number not used in a name; `private` are the positions of outputs that no user sees
    (saved activations), which may share memory with each other; `symbols` are the inputs that are integers. `ending`
    are inputs whose memory ends with their last use, `tangents` those of them that are gradients, of which outputs may
    be views; `updated` outputs that may lie in the memory of an input. `hints` are for choices that depend on how large
    symbolic sizes are. `tails` are of tiles, by the axis inside of each.
    """

    buffers: dict[str, loop.Buffer]
    inputs: tuple[str, ...]
    outputs: tuple[Arg, ...]
    items: tuple[Item, ...]
    decisions: tuple[loop.Decision, ...] = ()
    fresh: int = 0
    private: frozenset[int] = frozenset()
    symbols: tuple[str, ...] = ()
    ending: frozenset[str] = frozenset()
    tangents: frozenset[str] = frozenset()
    updated: frozenset[str] = frozenset()
    hints: dict[str, int] = {}
    tails: dict[str, Tail] = {}

    @property
    def kernels(self) -> list[loop.Kernel]:
        """The nests, in order."""
        return [item for item in self.items if isinstance(item, loop.Kernel)]

    @property
    def calls(self) -> list[loop.Extern]:
        return [item for item in self.items if isinstance(item, loop.Extern)]


class Names:
    """A supply of unused names; the one mutable thing a pass carries, dead when the pass returns."""

    __slots__ = ("count",)

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def __call__(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count - 1}"


class Rewriting:
    """A schedule while a pass rewrites it: its buffers, unused names, and what is decided on the way."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.hints = schedule, schedule.hints
        self.buffers, self.names = dict(schedule.buffers), Names(schedule.fresh)
        self.decisions: list[loop.Decision] = []
        self.tails = dict(schedule.tails)

    def add_buffer(self, nest: loop.Kernel, suffix: str, dtype: DType, shape: tuple[Dim, ...]) -> str:
        """A row-major buffer on the device that the nest writes on; its name."""
        name = f"{nest.name}_{suffix}"
        device = self.buffers[writes_of(nest)[0]].type.device
        self.buffers[name] = loop.Buffer(name, contiguous(dtype, shape, device), "kernel")
        return name

    def with_items(self, items: Iterable[Item]) -> Schedule:
        """The schedule as it is now, of these items."""
        decisions = (*self.schedule.decisions, *self.decisions)
        changed = {"buffers": self.buffers, "items": tuple(items), "decisions": decisions, "tails": self.tails}
        return replace(self.schedule, fresh=self.names.count, **changed)


def read_elsewhere(schedule: Schedule) -> frozenset[str]:
    """The buffers that a nest reads which writes on another device: numbers of the CPU."""
    devices = {name: buffer.type.device for name, buffer in schedule.buffers.items()}
    if len(set(devices.values())) < 2:
        return frozenset()
    written = ((nest, devices[name]) for nest in schedule.kernels for name in writes_of(nest)[:1])
    return frozenset(name for nest, device in written for name in reads_of(nest) if devices[name] != device)


def read_by_calls(schedule: Schedule) -> frozenset[str]:
    """The buffers that calls read."""
    return frozenset(name for call in schedule.calls for name in reads_of(call))


def axis_sizes(nest: loop.Kernel) -> dict[str, Dim]:
    """The size of every axis of the nest, inner ones too."""
    sizes = {axis.name: axis.size for axis in nest.axes}
    for section in nest.sections:
        for axis in section.axes:
            sizes[axis.name] = axis.size
    return sizes


def public_outputs(schedule: Schedule) -> frozenset[str]:
    """Names of the buffers that the user gets: those that only the backward reads may be laid out as is best."""
    seen = (arg for place, arg in enumerate(schedule.outputs) if place not in schedule.private)
    return frozenset(name for arg in seen for name in references(arg))


def output_names(schedule: Schedule) -> frozenset[str]:
    """Names of the buffers that the graph returns."""
    return frozenset(name for arg in schedule.outputs for name in references(arg))


def keeps_order(statements: Iterable[object]) -> bool:
    """Whether it matters in which order the inner axes around these statements run: a result counts or adds them up."""
    return any(
        isinstance(s, loop.Scan) or (isinstance(s, loop.Reduce) and s.reduction in ("argmax", "argmin"))
        for s in statements
    )


def substitute_axes(
    kernel: loop.Kernel, mapping: Mapping[str, loop.Index], replacement: Mapping[str, tuple[loop.Axis, ...]]
) -> loop.Kernel:
    """The kernel with axes replaced by indices over new axes; `replacement` lists the new ones for an old."""
    if not mapping:
        return kernel
    sizes: dict[str, Dim] = axis_sizes(kernel)
    for axes in replacement.values():
        sizes.update({axis.name: axis.size for axis in axes})

    def change(index: loop.Index) -> loop.Index:
        return ix.substitute(index, mapping, sizes)

    def replaced(axes: tuple[loop.Axis, ...]) -> tuple[loop.Axis, ...]:
        return tuple([new for axis in axes for new in replacement.get(axis.name, (axis,))])

    changed = map_statements(kernel, lambda statement: map_indices(statement, change))
    sections = tuple([loop.Section(replaced(one.axes), one.statements) for one in changed.sections])
    return replace(kernel, axes=replaced(kernel.axes), sections=sections)


def freeze(schedule: Schedule) -> loop.LoopGraph:
    """The loop graph; steps and decisions in order."""
    steps = tuple([
        item if isinstance(item, loop.Extern) else freeze_kernel(item, schedule.buffers, f"kernel{number}")
        for number, item in enumerate(schedule.items)
    ])  # fmt: skip
    return loop.LoopGraph(
        buffers=tuple(schedule.buffers.values()),
        inputs=schedule.inputs,
        outputs=schedule.outputs,
        steps=steps,
        decisions=schedule.decisions,
        symbols=schedule.symbols,
    )


def freeze_kernel(kernel: loop.Kernel, buffers: Mapping[str, loop.Buffer], name: str) -> loop.Kernel:
    """Coordinates become offsets; outer axes are called i0, i1..., inner ones r0, r1..., values v0, v1...

    A value that nothing defines, which is a fault of a pass, is called otherwise than all of them (K3 reports it).
    """

    def frozen(statement: loop.Statement) -> loop.Statement:
        if isinstance(statement, loop.Load | loop.Store):
            stride = buffers[statement.buffer].type.stride
            return replace(statement, index=ix.linear(statement.index, stride))  # type: ignore[arg-type]
        return statement

    values = [value for statement in statements_of(kernel) for value in results(statement)]
    names = {value: f"v{n}" for n, value in enumerate(values)}
    used = set[str]()
    for statement in statements_of(kernel):
        add_used_values(statement, used)
    names |= {value: f"undefined_{value}" for value in used - names.keys()}
    return replace(numbered(map_statements(kernel, frozen), names), name=name)


def numbered(kernel: loop.Kernel, values: Mapping[str, str] = MappingProxyType({})) -> loop.Kernel:
    """The kernel with names of axes without gaps, and these of values; inner axes of one name keep one name only if
    they have one size."""
    names = {**values, **{axis.name: f"i{n}" for n, axis in enumerate(kernel.axes)}}
    inner: dict[tuple[str, Dim], str] = {}

    def named(axes: tuple[loop.Axis, ...], local: Mapping[str, str]) -> tuple[loop.Axis, ...]:
        return tuple([loop.Axis(local[axis.name], axis.size) for axis in axes])

    sections: list[loop.Section] = []
    for section in kernel.sections:
        local = dict(names)
        for axis in section.axes:
            local[axis.name] = inner.setdefault((axis.name, axis.size), f"r{len(inner)}")
        if any(old != new for old, new in local.items()):
            renamed = tuple([rename(s, local) for s in section.statements])
            section = loop.Section(named(section.axes, local), renamed)
        sections.append(section)
    return replace(kernel, axes=named(kernel.axes, names), sections=tuple(sections))
