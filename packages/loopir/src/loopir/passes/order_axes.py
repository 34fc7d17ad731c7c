"""Passes: loop order by strides, so that the innermost axis runs along memory; neighbours that are one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from loopir.schedule import keeps_order, numbered
from stagewire.expr import Dim
from stagewire.index import steps
from stagewire.loop import Axis, Kernel, Load, LoopGraph, Section, Store
from stagewire.sizes import estimate
from stagewire.statements import merge_axes

Strides = dict[str, Dim]


@dataclass(frozen=True)
class OrderAxes:
    """Before: axes in the order of the dimensions. After: axes from the largest stride to the smallest in the stores
    (then in the loads); where strides do not say, the order stays. The axes of an argmax and of a scan stay: their
    results count or add up the points in this order.
    """

    name = "order_axes"

    def run(self, graph: LoopGraph) -> LoopGraph:
        steps = tuple(self._kernel(step) if isinstance(step, Kernel) else step for step in graph.steps)
        return replace(graph, steps=steps)

    def _kernel(self, kernel: Kernel) -> Kernel:
        sections = tuple(_order_section(section) for section in kernel.sections)
        accesses = [a for kind in (Store, Load) for section in kernel.sections for a in _strides(section, kind)]
        return replace(kernel, axes=sort_axes(kernel.axes, accesses), sections=sections)


def _order_section(section: Section) -> Section:
    if len(section.axes) < 2:
        return section
    if keeps_order(section.statements):
        return section
    accesses = [a for kind in (Store, Load) for a in _strides(section, kind)]
    return replace(section, axes=sort_axes(section.axes, accesses))


def _strides(section: Section, kind: type[Store] | type[Load]) -> list[Strides]:
    return [steps(s.index) for s in section.statements if isinstance(s, kind)]


def sort_axes(axes: tuple[Axis, ...], accesses: Sequence[Strides]) -> tuple[Axis, ...]:
    """Insertion sort by the first access that tells two axes apart, as ATen's TensorIterator orders dimensions."""
    result: list[Axis] = []
    for axis in axes:
        place = len(result)
        while place > 0 and _slower(axis.name, result[place - 1].name, accesses):
            place -= 1
        result.insert(place, axis)
    return tuple(result)


def _slower(a: str, b: str, accesses: Sequence[Strides]) -> bool:
    for access in accesses:
        left, right = access.get(a, 0), access.get(b, 0)
        if left == 0 or right == 0:
            continue
        if abs(estimate(left)) != abs(estimate(right)):
            return abs(estimate(left)) > abs(estimate(right))
    return False


@dataclass(frozen=True)
class MergeAxes:
    """Before: axes i of 4 and j of 8 with 8*c*i + c*j in every index. After: one axis of 32 with c*k."""

    name = "merge_axes"

    def run(self, graph: LoopGraph) -> LoopGraph:
        steps = tuple(merge_kernel(step) if isinstance(step, Kernel) else step for step in graph.steps)
        return replace(graph, steps=steps)


def merge_kernel(kernel: Kernel) -> Kernel:
    """Merge outer axes over the whole kernel, inner ones section by section."""
    outer, sections = merge_axes(kernel.axes, kernel.sections)
    merged: list[Section] = []
    for section in sections:
        if len(section.axes) > 1:
            axes, (section,) = merge_axes(section.axes, (section,))
            section = Section(axes, section.statements)
        merged.append(section)
    return numbered(replace(kernel, axes=outer, sections=tuple(merged)))
