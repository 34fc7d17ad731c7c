"""Pass: a buffer that one kernel uses for itself alone moves into another that the kernel stores at the same places."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from stagewire.graph import references
from stagewire.index import axes_of
from stagewire.loop import Buffer, Decision, Kernel, Load, LoopGraph, Section, Step, Store
from stagewire.statements import accesses, buffers_of, map_buffers, select


@dataclass(frozen=True)
class MergeScratch:
    """Before: a section stores `t`, a later one loads it and stores `y` at the same index; nobody else sees `t`.
    After: `t` is `y`: the row is written to `y` first, and overwritten at the point that reads it last."""

    name = "merge_scratch"

    def run(self, graph: LoopGraph) -> LoopGraph:
        buffers = {buffer.name: buffer for buffer in graph.buffers}
        users = _users(graph, buffers)
        steps: list[Step] = []
        decisions: list[Decision] = []
        for number, step in enumerate(graph.steps):
            if isinstance(step, Kernel) and len(step.sections) > 1:
                for old in _scratch(step, number, users):
                    new = _host(step, buffers, users, number, old)
                    if new is not None:
                        step = map_buffers(step, {old: new})
                        del buffers[old]
                        decisions.append(Decision("reused", (new, old), "a row of scratch is kept in the result"))
            steps.append(step)
        kept = tuple(buffer for buffer in graph.buffers if buffer.name in buffers)
        return msgspec.structs.replace(
            graph, buffers=kept, steps=tuple(steps), decisions=(*graph.decisions, *decisions)
        )


def _users(graph: LoopGraph, buffers: dict[str, Buffer]) -> dict[str, set[int]]:
    """The steps that touch each buffer that owns memory; -1 stands for the caller."""
    users: dict[str, set[int]] = {}
    for number, step in enumerate(graph.steps):
        for name in buffers_of(step):
            users.setdefault(buffers[name].base or name, set()).add(number)
    given = (name for name in graph.inputs if name in buffers)
    for name in (*given, *(n for arg in graph.outputs for n in references(arg))):
        users.setdefault(buffers[name].base or name, set()).add(-1)
    return users


def _scratch(kernel: Kernel, number: int, users: dict[str, set[int]]) -> list[str]:
    stored = [s.buffer for s in select(kernel.sections, Store)]
    return [name for name in dict.fromkeys(stored) if users[name] == {number}]


def _host(kernel: Kernel, buffers: dict[str, Buffer], users: dict[str, set[int]], number: int, old: str) -> str | None:
    """A buffer of the same type whose one store is at the same index, in or after the section that loads `old` last."""
    seen = _accesses(kernel, old)
    store = seen[0][2]
    if any(s.index != store.index or s.mask is not None or section.axes != seen[0][3].axes
           for _, _, s, section in seen):  # fmt: skip
        return None
    if not isinstance(store, Store) or any(isinstance(s, Store) and s.mode != "set" for _, _, s, _ in seen):
        return None
    axes = {axis.name for axis in (*kernel.axes, *seen[0][3].axes) if axis.size != 1}
    if not axes <= axes_of(store.index):  # every point must have an element of its own
        return None
    last = seen[-1][:2]
    stored = [s.buffer for s in select(kernel.sections, Store)]
    for new in dict.fromkeys(stored):
        if new == old or new not in buffers or min(users[new] - {-1}) != number:
            continue
        found = _accesses(kernel, new)
        one = found[0]
        same = buffers[new].type.dtype == buffers[old].type.dtype and buffers[new].role == "kernel"
        if not same or not isinstance(one[2], Store) or one[2].mode != "set" or one[2].mask is not None:
            continue
        stores = sum(isinstance(s, Store) for _, _, s, _ in found)
        if stores == 1 and one[:2] > last and one[2].index == store.index and one[3].axes == seen[0][3].axes:
            return new
    return None


def _accesses(kernel: Kernel, buffer: str) -> list[tuple[int, int, Load | Store, Section]]:
    return [(s, n, one, kernel.sections[s]) for s, n, one in accesses(kernel) if one.buffer == buffer]
