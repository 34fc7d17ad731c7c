"""What writes a buffer onto itself is not run.

    kernel i { store y[i] = load x[i] }, with `reuse` x of y: nothing; y begins as x

`index_copy_` on an input is such a copy and a kernel that stores the rows: where the result lies in the input's memory,
only the rows are written.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from codegen.cpp.uses import used_values
from stagewire.graph import Ref
from stagewire.loop import Kernel, Load, LoopGraph, Section, Statement, Step, Store


def without_copies_in_place(graph: LoopGraph) -> LoopGraph:
    """The graph without the stores of an element where it lies already, and without kernels of nothing else."""
    taken = {b.name: b.reuse for b in graph.buffers if b.reuse is not None and b.reuse in graph.inputs}
    if not taken:
        return graph
    steps = [step for one in graph.steps if (step := _without(one, taken)) is not None]
    return replace(graph, steps=tuple(steps))


def _without(step: Step, taken: Mapping[str, str]) -> Step | None:
    if not isinstance(step, Kernel) or not any(_copies(section, taken) for section in step.sections):
        return step
    kept = [_others(section, _copies(section, taken)) for section in step.sections]
    used = {name for statements in kept for one in statements for name in used_values(one)}
    sections = [
        replace(section, statements=tuple([s for s in statements if not isinstance(s, Load) or s.result in used]))
        for section, statements in zip(step.sections, kept, strict=True)
    ]
    sections = [section for section in sections if section.statements]
    return replace(step, sections=tuple(sections)) if sections else None


def _copies(section: Section, taken: Mapping[str, str]) -> list[Store]:
    """Stores of what was loaded from the same place of the same memory."""
    loads = {one.result: one for one in section.statements if isinstance(one, Load) and one.mask is None}
    found = []
    for one in section.statements:
        if not isinstance(one, Store) or one.mode != "set" or not isinstance(one.value, Ref):
            continue
        load = loads.get(one.value.name)
        if load is not None and taken.get(one.buffer) == load.buffer and load.index == one.index:
            found.append(one)
    return found


def _others(section: Section, dropped: list[Store]) -> list[Statement]:
    return [one for one in section.statements if one not in dropped]
