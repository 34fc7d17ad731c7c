"""Pass: two neighbouring axes that every access sees as one become one."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from stagewire.expr import Dim
from stagewire.loop import Axis, Kernel, LoopGraph, Section
from stagewire.statements import merge_axes, rename


@dataclass(frozen=True)
class MergeAxes:
    """Before: axes i of 4 and j of 8 with 8*c*i + c*j in every index. After: one axis of 32 with c*k."""

    name = "merge_axes"

    def run(self, graph: LoopGraph) -> LoopGraph:
        steps = tuple(merge_kernel(step) if isinstance(step, Kernel) else step for step in graph.steps)
        return msgspec.structs.replace(graph, steps=steps)


def merge_kernel(kernel: Kernel) -> Kernel:
    """Merge outer axes over the whole kernel, inner ones section by section."""
    outer, sections = merge_axes(kernel.axes, kernel.sections, _fast)
    merged: list[Section] = []
    for section in sections:
        if len(section.axes) > 1:
            axes, (section,) = merge_axes(section.axes, (section,), _fast)
            section = Section(axes, section.statements)
        merged.append(section)
    return _rename(msgspec.structs.replace(kernel, axes=outer, sections=tuple(merged)))


def _fast(slow: Axis, fast: Axis) -> str:
    return fast.name


def _rename(kernel: Kernel) -> Kernel:
    """Names without gaps; inner axes of one name keep one name only if they have one size."""
    names = {axis.name: f"i{n}" for n, axis in enumerate(kernel.axes)}
    inner: dict[tuple[str, Dim], str] = {}
    sections: list[Section] = []
    for section in kernel.sections:
        local = dict(names)
        for axis in section.axes:
            local[axis.name] = inner.setdefault((axis.name, axis.size), f"r{len(inner)}")
        if any(old != new for old, new in local.items()):
            axes = tuple(Axis(local[a.name], a.size) for a in section.axes)
            section = Section(axes, tuple([rename(s, local) for s in section.statements]))
        sections.append(section)
    axes = tuple(Axis(names[a.name], a.size) for a in kernel.axes)
    return msgspec.structs.replace(kernel, axes=axes, sections=tuple(sections))
