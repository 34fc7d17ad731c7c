"""Passes: which buffers share memory, and when each dies."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from loopir.layout import is_dense
from stagewire.expr import Dim
from stagewire.graph import references
from stagewire.index import axes_of
from stagewire.loop import Decision, Free, Kernel, Load, LoopGraph, Section, Step, Store
from stagewire.statements import accesses, buffers_of, map_buffers, writes_of
from stagewire.types import ITEM_SIZE, numel


@dataclass(frozen=True)
class PlanMemory:
    """Before: kernels and externs only. After: a `Free` follows the last use of every buffer that is neither input nor
    output, unless a later buffer of the same size takes over its memory (`reuse`), possibly in place: written by the
    kernel that reads it last, each element at the point that reads it last. Memory that a view made by ATen may share
    is not taken over. Memory of a GPU is taken over by the next step, or not at all: where it waits, other steps and
    what libraries hold beside their operands cannot have it. (That of a CPU is in its cache, and all of it stays.)"""

    name = "plan_memory"
    reuse: bool = True
    in_place: bool = True

    def run(self, graph: LoopGraph) -> LoopGraph:
        return _Plan(graph, self).result()


class Uses:
    """Which steps use the memory of which buffer: of those that own theirs, the first and the last one.

    uses: by step, what it touches. outputs: what the caller gets. aliased: what a view made by ATen may share.
    """

    def __init__(self, graph: LoopGraph) -> None:
        self.graph, self.buffers = graph, {buffer.name: buffer for buffer in graph.buffers}
        self.uses = [tuple(dict.fromkeys(self.root(name) for name in buffers_of(step))) for step in graph.steps]
        self.outputs = [self.root(name) for arg in graph.outputs for name in references(arg)]
        self.last = {name: number for number, names in enumerate(self.uses) for name in names}
        self.first = {name: n for n, names in reversed(list(enumerate(self.uses))) for name in names}
        calls = zip(graph.steps, self.uses, strict=True)
        self.aliased = {n for call, names in calls if getattr(call, "effect", None) == "aliases" for n in names}

    def root(self, name: str) -> str:
        return self.buffers[name].base or name


class _Plan(Uses):
    def __init__(self, graph: LoopGraph, options: PlanMemory) -> None:
        super().__init__(graph)
        self.options = options
        self.decisions: list[Decision] = []
        self.kept = {*self.outputs, *graph.inputs}
        self.kept_memory = self.kept | self.aliased
        self.dead: dict[tuple[Dim, str], list[str]] = {}

    def result(self) -> LoopGraph:
        """The graph with `Free` steps and `reuse`."""
        steps: list[Step] = []
        taken: set[str] = set()
        for number, step in enumerate(self.graph.steps):
            if isinstance(step, Kernel) and self.options.reuse:
                for name in self.uses[number]:
                    if self.buffers[name].role == "kernel" and self.first[name] == number:
                        self._take_over(name, step, number, taken)
            steps.append(step)
            for name in self.uses[number]:
                if self.last[name] == number and name not in self.kept and name not in taken:
                    steps.append(Free(name))
                    if name not in self.kept_memory:
                        self.dead.setdefault(self._size(name), []).append(name)
        freed = [step for step in steps if not (isinstance(step, Free) and step.buffer in taken)]
        buffers = tuple(self.buffers[buffer.name] for buffer in self.graph.buffers)
        return replace(
            self.graph, buffers=buffers, steps=tuple(freed), decisions=(*self.graph.decisions, *self.decisions)
        )

    def _size(self, name: str) -> tuple[Dim, str]:
        type = self.buffers[name].type
        return numel(type.shape) * ITEM_SIZE[type.dtype], type.device

    def _take_over(self, name: str, kernel: Kernel, number: int, taken: set[str]) -> None:
        buffer = self.buffers[name]
        size = self._size(name)
        if buffer.reuse is not None or size[0] == 0 or not is_dense(buffer.type):
            return
        old, where = self._in_place(name, kernel, number, taken), "in place"
        if old is None:
            oldest = 0 if size[1] == "cpu" else number - 1
            pool = [d for d in self.dead.get(size, ()) if d not in taken and self.last[d] >= oldest]
            old, where = (pool[-1], "dead before") if pool else (None, "")
        if old is None:
            return
        taken.add(old)
        self.buffers[name] = replace(buffer, reuse=old)
        self.decisions.append(Decision("reused", (name, old), where, size[0]))

    def _in_place(self, name: str, kernel: Kernel, number: int, taken: set[str]) -> str | None:
        if not self.options.in_place:
            return None
        for old in self.uses[number]:
            if old == name or old in self.kept_memory or old in taken or self.last[old] != number:
                continue
            if self.buffers[old].role == "input" or self._size(old) != self._size(name):
                continue
            if self.buffers[old].reuse == name or not self._same_item(old, name):
                continue
            if may_share(kernel, old, name):
                return old
        return None

    def _same_item(self, a: str, b: str) -> bool:
        left, right = self.buffers[a].type, self.buffers[b].type
        return is_dense(left) and ITEM_SIZE[left.dtype] == ITEM_SIZE[right.dtype]


def may_share(kernel: Kernel, old: str, new: str) -> bool:
    """Whether `new` may lie in the memory of `old`: `old` is only loaded, at the index at which the one store of `new`
    happens, in an earlier section or earlier at the same point; and `new` is not read."""
    store: tuple[int, int, Load | Store] | None = None
    loads: list[tuple[int, int, Load | Store]] = []
    for found in accesses(kernel):
        statement = found[2]
        if statement.buffer == new:
            if store is not None or not isinstance(statement, Store) or statement.mode != "set" or statement.mask:
                return False
            store = found
        elif statement.buffer == old:
            if isinstance(statement, Store):
                return False
            loads.append(found)
    if store is None or any(load[:2] > store[:2] or load[2].index != store[2].index for load in loads):
        return False
    axes = kernel.sections[store[0]].axes
    return bool(loads) and all(kernel.sections[section].axes == axes for section, _, _ in loads)


@dataclass(frozen=True)
class MergeScratch:
    """Before: a section stores `t`, a later one loads it and stores `y` at the same index; nobody else sees `t`.
    After: `t` is `y`: the row is written to `y` first, and overwritten at the point that reads it last."""

    name = "merge_scratch"

    def run(self, graph: LoopGraph) -> LoopGraph:
        uses = Uses(graph)
        buffers, kept = uses.buffers, {*uses.outputs, *graph.inputs}
        steps: list[Step] = []
        decisions: list[Decision] = []
        for number, step in enumerate(graph.steps):
            if isinstance(step, Kernel) and len(step.sections) > 1:
                stored = dict.fromkeys(writes_of(step))
                for old in [one for one in stored if uses.first[one] == uses.last[one] == number and one not in kept]:
                    new = _host(step, uses, number, old)
                    if new is not None:
                        step = map_buffers(step, {old: new})
                        del buffers[old]
                        decisions.append(Decision("reused", (new, old), "a row of scratch is kept in the result"))
            steps.append(step)
        left = tuple(buffer for buffer in graph.buffers if buffer.name in buffers)
        return replace(graph, buffers=left, steps=tuple(steps), decisions=(*graph.decisions, *decisions))


def _host(kernel: Kernel, uses: Uses, number: int, old: str) -> str | None:
    """A buffer of the same type whose one store is at the same index, in or after the section that loads `old` last."""
    seen, buffers = _accesses(kernel, old), uses.buffers
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
    for new in dict.fromkeys(writes_of(kernel)):
        if new == old or new not in buffers or uses.first[new] != number:
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
