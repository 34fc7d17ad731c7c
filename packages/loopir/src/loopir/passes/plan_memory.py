"""Passes: which buffers share memory, and when each dies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from loopir.layout import is_dense
from stagewire.expr import Dim
from stagewire.graph import references
from stagewire.index import axes_of
from stagewire.loop import Decision, Extern, Free, Kernel, LoopGraph, Step, Store
from stagewire.statements import accesses, buffers_of, map_buffers, reads_of, writes_of
from stagewire.types import ITEM_SIZE, bytes_of


@dataclass(frozen=True)
class PlanMemory:
    """Before: kernels and externs only. After: a `Free` follows the last use of every buffer that is neither input nor
    output, unless a later buffer of the same size takes over its memory (`reuse`), possibly in place: written by the
    kernel that reads it last, each element at the point that reads it last. Memory that a view made by ATen may share,
    or that an operator of a library may hold on to, is not taken over. Memory of a GPU is taken over by the next step,
    or not at all: where it waits, other steps and what libraries hold beside their operands cannot have it. (That of a
    CPU is in its cache, and all of it stays.)"""

    name = "plan_memory"
    sees_whole_graph = True

    def run(self, graph: LoopGraph) -> LoopGraph:
        return _Plan(graph).result()


class Uses:
    """Which steps use the memory of which buffer: of those that own theirs, the first and the last one.

    uses: by step, what it touches (a wait, what the collective reads). outputs: what the caller gets. aliased: what may
    be in use behind its last step.
    """

    def __init__(self, graph: LoopGraph) -> None:
        self.graph, self.buffers = graph, {buffer.name: buffer for buffer in graph.buffers}
        read = read_until_waits(graph.steps)
        touched = [(*buffers_of(step), *read.get(number, ())) for number, step in enumerate(graph.steps)]
        self.uses = [tuple(dict.fromkeys(map(self.root, names))) for names in touched]
        self.outputs = [self.root(name) for arg in graph.outputs for name in references(arg)]
        self.last = {name: number for number, names in enumerate(self.uses) for name in names}
        self.first = {name: n for n, names in reversed(list(enumerate(self.uses))) for name in names}
        calls = zip(graph.steps, self.uses, strict=True)
        self.aliased = {n for call, names in calls if isinstance(call, Extern) and _holds_on(call) for n in names}

    def root(self, name: str) -> str:
        return self.buffers[name].base or name


class _Plan(Uses):
    def __init__(self, graph: LoopGraph) -> None:
        super().__init__(graph)
        self.decisions: list[Decision] = []
        self.kept = {*self.outputs, *graph.inputs}
        self.kept_memory = self.kept | self.aliased
        self.dead: dict[tuple[Dim, str], list[str]] = {}

    def result(self) -> LoopGraph:
        """The graph with `Free` steps and `reuse`."""
        steps: list[Step] = []
        taken: set[str] = set()
        for number, step in enumerate(self.graph.steps):
            if isinstance(step, Kernel):
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
        return bytes_of(type), type.device

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


def _holds_on(call: Extern) -> bool:
    """Whether memory may be in use behind a call in which it ends: a view shares it, and so does what an operator of a
    library gives or does meanwhile."""
    is_foreign = call.effect == "acts" and not call.target.startswith("aten.")
    return is_foreign or call.effect in ("aliases", "sends", "waits")


def read_until_waits(items: Sequence[Step]) -> dict[int, tuple[str, ...]]:
    """For each wait, by its position, what its collective reads until then."""
    sent: dict[str, tuple[str, ...]] = {}
    found: dict[int, tuple[str, ...]] = {}
    for position, item in enumerate(items):
        if isinstance(item, Extern) and item.effect == "sends":
            sent.update(dict.fromkeys(item.results, tuple(reads_of(item))))
        elif isinstance(item, Extern) and item.effect == "waits":
            found[position] = tuple(name for pending in reads_of(item) for name in sent.get(pending, ()))
    return found


def may_share(kernel: Kernel, old: str, new: str, *, is_scratch: bool = False) -> bool:
    """Whether `new` may lie in the memory of `old`: `old` is accessed only at the index at which the one store of `new`
    happens, in an earlier section or earlier at the same point, and `new` is not read before.

    is_scratch: whether the kernel stores `old` first, and may read `new` afterwards; else it only loads `old`.
    """
    mine, before = ([one for one in accesses(kernel) if one[2].buffer == name] for name in (new, old))
    if not before or [isinstance(one[2], Store) for one in mine] != [True, *[False] * (len(mine) - 1)]:
        return False
    if len(mine) > 1 and not is_scratch:
        return False
    place, store = mine[0][:2], mine[0][2]
    stores = [one[2] for one in before if isinstance(one[2], Store)]
    if any(one.mode != "set" or one.mask is not None for one in (store, *stores)):  # type: ignore[union-attr]
        return False
    if stores[:1] != ([before[0][2]] if is_scratch else []):
        return False
    axes = kernel.sections[place[0]].axes
    if any(axis.size != 1 and axis.name not in axes_of(store.index) for axis in (*kernel.axes, *axes)):
        return False  # points that share an element
    at_its_point = (one.index == store.index and kernel.sections[section].axes == axes for section, _, one in before)
    return before[-1][:2] <= place and all(at_its_point)


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
                own = [one for one in dict.fromkeys(writes_of(step)) if uses.first[one] == number]
                for old in [one for one in own if uses.last[one] == number and one not in kept]:
                    others = [one for one in own if one != old and one in buffers and buffers[one].role == "kernel"]
                    alike = [one for one in others if buffers[one].type.dtype == buffers[old].type.dtype]
                    new = next((one for one in alike if may_share(step, old, one, is_scratch=True)), None)
                    if new is not None:
                        step = map_buffers(step, {old: new})
                        del buffers[old]
                        decisions.append(Decision("reused", (new, old), "a row of scratch is kept in the result"))
            steps.append(step)
        left = tuple(buffer for buffer in graph.buffers if buffer.name in buffers)
        return replace(graph, buffers=left, steps=tuple(steps), decisions=(*graph.decisions, *decisions))
