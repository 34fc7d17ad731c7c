"""Fewer, better ordered axes: axes are sorted by stride, and neighbours that move through memory as one are merged."""

from __future__ import annotations

import msgspec

from stagewire import index as ix
from stagewire.loop import Axis, Index, Kernel, Load, Reduce, Section, Store
from stagewire.statements import merge_axes, select


def simplify_axes(kernel: Kernel) -> Kernel:
    """The same kernel over fewer axes. Sums are taken in another order; positions of argmax and argmin are kept."""
    kernel = msgspec.structs.replace(kernel, axes=_sorted(kernel.axes, _first_access(kernel.sections, stores=True)))
    sections = list(kernel.sections)
    for number, section in enumerate(sections):
        axes = section.axes if _positions_matter(section) else _sorted(section.axes, _first_access((section,)))
        sections[number] = _merge_inner(Section(axes, section.statements))
    axes, merged = merge_axes(kernel.axes, tuple(sections), _both)
    return msgspec.structs.replace(kernel, axes=axes, sections=merged)


def _positions_matter(section: Section) -> bool:
    return any(isinstance(s, Reduce) and s.reduction in ("argmax", "argmin") for s in section.statements)


def _first_access(sections: tuple[Section, ...], stores: bool = False) -> Index | None:
    """The access whose strides say how the axes are walked; where stores go to computed places, the first load."""
    accesses = select(sections, Load | Store)
    wanted = [s.index for s in accesses if isinstance(s, Store)] if stores else [s.index for s in accesses]
    if stores and wanted and all(map(ix.has_values, wanted)):
        wanted = [s.index for s in accesses if isinstance(s, Load) and not ix.has_values(s.index)] or wanted
    return wanted[0] if wanted else None


def _sorted(axes: tuple[Axis, ...], index: Index | None) -> tuple[Axis, ...]:
    """By descending stride of the reference access, where that is known for every axis."""
    if index is None or len(axes) < 2:
        return axes
    steps = {axis.name: ix.coefficient(index, axis.name) for axis in axes}
    if not all(isinstance(step, int) for step in steps.values()):
        return axes
    moving = [a for a in axes if steps[a.name] != 0]
    still = [a for a in axes if steps[a.name] == 0]
    return tuple(still + sorted(moving, key=lambda a: -abs(steps[a.name])))  # type: ignore[arg-type]


def _merge_inner(section: Section) -> Section:
    axes, (section,) = merge_axes(section.axes, (section,), _both)
    return Section(axes, section.statements)


def _both(outer: Axis, inner: Axis) -> str:
    return f"{outer.name}_{inner.name}"
