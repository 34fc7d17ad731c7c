"""Pass: two neighbouring axes that every access sees as one become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from loopir.passes.kernel_indices import change_indices, coefficients, indices_of
from stagewire import index as ix
from stagewire.expr import Dim
from stagewire.loop import Axis, Index, Kernel, LoopGraph, Section


@dataclass(frozen=True)
class MergeAxes:
    """Before: axes i of 4 and j of 8 with 8*c*i + c*j in every index. After: one axis of 32 with c*k."""

    name = "merge_axes"

    def run(self, graph: LoopGraph) -> LoopGraph:
        steps = tuple(merge_kernel(step) if isinstance(step, Kernel) else step for step in graph.steps)
        return msgspec.structs.replace(graph, steps=steps)


def merge_kernel(kernel: Kernel) -> Kernel:
    """Merge outer axes over the whole kernel, inner ones section by section."""
    outer, sections = _merge(kernel.axes, kernel.sections)
    merged: list[Section] = []
    for section in sections:
        if len(section.axes) > 1:
            axes, (section,) = _merge(section.axes, (section,))
            section = Section(axes, section.statements)
        merged.append(section)
    return _rename(msgspec.structs.replace(kernel, axes=outer, sections=tuple(merged)))


def _merge(axes: tuple[Axis, ...], sections: tuple[Section, ...]) -> tuple[tuple[Axis, ...], tuple[Section, ...]]:
    if len(axes) < 2:
        return axes, sections
    facts = [coefficients(index) for section in sections for index in indices_of(section)]
    number = 0
    while number + 1 < len(axes):
        slow, fast = axes[number], axes[number + 1]
        if not _mergeable(slow, fast, facts):
            number += 1
            continue
        one = Axis(fast.name, slow.size * fast.size)
        axes = (*axes[:number], one, *axes[number + 2 :])
        sections = tuple(
            Section(s.axes, change_indices(s, lambda i, gone=slow.name: _without(i, gone))) for s in sections
        )
        for plain, _ in facts:
            plain.pop(slow.name, None)
    return axes, sections


def _mergeable(slow: Axis, fast: Axis, facts: Sequence[tuple[dict[str, Dim], set[str]]]) -> bool:
    for plain, nested in facts:
        if slow.name in nested or fast.name in nested:
            return False
        if plain.get(slow.name, 0) != plain.get(fast.name, 0) * fast.size:
            return False
    return True


def _without(index: Index, axis: str) -> Index:
    """k*size*slow + k*fast, seen over the merged axis, which has the name of the fast one."""
    kept = tuple(term for term in index.terms if term.atom != ix.axis(axis).terms[0].atom)
    return Index(index.constant, kept) if len(kept) != len(index.terms) else index


def _rename(kernel: Kernel) -> Kernel:
    """Names without gaps; inner axes of one name keep one name only if they have one size."""
    names = {axis.name: f"i{n}" for n, axis in enumerate(kernel.axes)}
    inner: dict[tuple[str, Dim], str] = {}
    sections: list[Section] = []
    for section in kernel.sections:
        local = dict(names)
        for axis in section.axes:
            local[axis.name] = inner.setdefault((axis.name, axis.size), f"r{len(inner)}")
        if all(old == new for old, new in local.items()):
            sections.append(section)
            continue
        statements = change_indices(section, lambda i, local=local: ix.rename(i, local) if i.terms else i)
        sections.append(Section(tuple(Axis(local[a.name], a.size) for a in section.axes), statements))
    axes = tuple(Axis(names[a.name], a.size) for a in kernel.axes)
    return msgspec.structs.replace(kernel, axes=axes, sections=tuple(sections))
