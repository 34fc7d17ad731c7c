"""Fewer, better ordered axes: axes are sorted by stride, and neighbours that move through memory as one are merged."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from codegen.cpp.indexing import can_merge, coefficient, has_value, merge
from stagewire.loop import Axis, Index, IndexValue, Kernel, Load, Reduce, Section, Statement, Store


def simplify_axes(kernel: Kernel) -> Kernel:
    """The same kernel over fewer axes. Sums are taken in another order; positions of argmax and argmin are kept."""
    kernel = msgspec.structs.replace(kernel, axes=_sorted(kernel.axes, _first_access(kernel.sections, stores=True)))
    sections = list(kernel.sections)
    for number, section in enumerate(sections):
        axes = section.axes if _positions_matter(section) else _sorted(section.axes, _first_access((section,)))
        sections[number] = _merge_inner(Section(axes, section.statements))
    return _merge_outer(kernel.axes, tuple(sections), kernel)


def _positions_matter(section: Section) -> bool:
    return any(isinstance(s, Reduce) and s.reduction in ("argmax", "argmin") for s in section.statements)


def _first_access(sections: tuple[Section, ...], stores: bool = False) -> Index | None:
    """The access whose strides say how the axes are walked; where stores go to computed places, the first load."""
    accesses = [s for section in sections for s in section.statements if isinstance(s, Load | Store)]
    wanted = [s.index for s in accesses if isinstance(s, Store)] if stores else [s.index for s in accesses]
    if stores and wanted and all(map(has_value, wanted)):
        wanted = [s.index for s in accesses if isinstance(s, Load) and not has_value(s.index)] or wanted
    return wanted[0] if wanted else None


def _sorted(axes: tuple[Axis, ...], index: Index | None) -> tuple[Axis, ...]:
    """By descending stride of the reference access, where that is known for every axis."""
    if index is None or len(axes) < 2:
        return axes
    steps = {axis.name: coefficient(index, axis.name) for axis in axes}
    if not all(isinstance(step, int) for step in steps.values()):
        return axes
    moving = [a for a in axes if steps[a.name] != 0]
    still = [a for a in axes if steps[a.name] == 0]
    return tuple(still + sorted(moving, key=lambda a: -abs(steps[a.name])))  # type: ignore[arg-type]


def _indices(statements: tuple[Statement, ...]) -> list[Index]:
    return [s.index for s in statements if isinstance(s, Load | Store | IndexValue)]


def _rewrite(section: Section, change: Callable[[Index], Index]) -> tuple[Statement, ...]:
    return tuple(
        msgspec.structs.replace(s, index=change(s.index)) if isinstance(s, Load | Store | IndexValue) else s
        for s in section.statements
    )


def _merge_inner(section: Section) -> Section:
    position = 0
    while position + 1 < len(section.axes):
        outer, inner = section.axes[position], section.axes[position + 1]
        if not all(can_merge(index, outer.name, inner.name, inner.size) for index in _indices(section.statements)):
            position += 1
            continue
        name = f"{outer.name}_{inner.name}"
        merged = Axis(name, outer.size * inner.size)
        statements = _rewrite(section, lambda i, a=outer.name, b=inner.name, n=name: merge(i, a, b, n))
        section = Section((*section.axes[:position], merged, *section.axes[position + 2 :]), statements)
    return section


def _merge_outer(axes: tuple[Axis, ...], sections: tuple[Section, ...], kernel: Kernel) -> Kernel:
    position = 0
    while position + 1 < len(axes):
        outer, inner = axes[position], axes[position + 1]
        every = [index for section in sections for index in _indices(section.statements)]
        if not all(can_merge(index, outer.name, inner.name, inner.size) for index in every):
            position += 1
            continue
        name = f"{outer.name}_{inner.name}"
        change = lambda i, a=outer.name, b=inner.name, n=name: merge(i, a, b, n)  # noqa: E731
        sections = tuple(Section(s.axes, _rewrite(s, change)) for s in sections)
        axes = (*axes[:position], Axis(name, outer.size * inner.size), *axes[position + 2 :])
    return msgspec.structs.replace(kernel, axes=axes, sections=sections)
