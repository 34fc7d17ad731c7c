"""Kernels that follow each other as one function, so that the threads are started once for all of them.

    region of OpenMP        starting and joining the threads: two barriers and more
    barrier inside of one   where a kernel needs what the ones before it wrote; nothing where it does not

(`benchmarks/parallel_regions.py` prints what each costs.) This pays for kernels of some microseconds: large ones do not
feel it, and small ones run on one thread, unless they are many and independent of each other (an optimizer's step).

What a function reports is looked at when it has ended. So a kernel that writes an input of the caller's does not join
one that may report an error: the input is as it was where that happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from codegen.cpp.plan import make_plan, total_work
from codegen.cpp.reductions import order_free
from codegen.cpp.tuning import TUNED
from codegen.errors import MalformedLoop
from codegen.memory import allocated
from stagewire.loop import Buffer, Extern, Kernel, LoopGraph
from stagewire.loop_ops import may_raise
from stagewire.statements import reads_of, statements_of, writes_of

Stages = list[list[Kernel]]
"""Kernels of one stage need nothing of each other, but all of the stages before."""


def group_kernels(graph: LoopGraph, roots: Mapping[str, str], threshold: int) -> Iterator[Stages]:
    """All kernels of a graph, those of a group together, in an order in which they may run."""
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    group = _Group(buffers, roots, threshold)
    for step in graph.steps:
        if isinstance(step, Extern) or (isinstance(step, Kernel) and not group.take(step)):
            yield from group.close()
            group = _Group(buffers, roots, threshold)
            if isinstance(step, Kernel):
                group.take(step)
    yield from group.close()


class _Group:
    """Kernels in a row; `read` and `written` are the roots of the memory that the last stage touches."""

    def __init__(self, buffers: Mapping[str, Buffer], roots: Mapping[str, str], threshold: int) -> None:
        self.buffers, self.roots, self.threshold = buffers, roots, threshold
        self.stages: Stages = []
        self.read: set[str] = set()
        self.written: set[str] = set()
        self.made: set[str] = set()
        self.reports = False  # whether an error may be reported before anything of the caller's is written
        self.work = self.bytes = 0

    def take(self, kernel: Kernel) -> bool:
        """Add a kernel, if it belongs here; the first one does."""
        loaded, stored = (dict.fromkeys(found(kernel)) for found in (reads_of, writes_of))
        for name in (*loaded, *stored):
            if name not in self.buffers:
                raise MalformedLoop(f"the kernel uses a buffer {name!r} that the graph does not declare")
        work = total_work(kernel)
        read, written = ({self.roots[name] for name in names} for names in (loaded, stored))
        updates = any(self.buffers[name].role == "input" for name in written)
        if self.reports and updates:
            return False
        if self.stages:
            size = sum(self._bytes(name) for name in stored if name not in self.made)
            if not self._has_room(stored, size) or not self._is_open or not _is_shareable(kernel, self.threshold):
                return False
            assert isinstance(work, int), "what can be shared has a known size"
            needs = bool(read & self.written or written & (self.read | self.written))
            if needs and (work < self.threshold or self.work < self.threshold):
                return False
            self.bytes += size
        else:
            needs = True
        if needs:
            self.stages.append([])
            self.read, self.written = set(), set()
        self.stages[-1].append(kernel)
        self.read |= read
        self.written |= written
        self.made |= set(stored)
        self.reports |= not updates and any(may_raise(s) for s in statements_of(kernel))
        self.work += work if isinstance(work, int) else 0
        return True

    @cached_property
    def _is_open(self) -> bool:
        """Whether others may follow the first kernel."""
        return _is_shareable(self.stages[0][0], self.threshold)

    def _has_room(self, stored: Iterable[str], size: int) -> bool:
        """Whether buffers of so many bytes may be there from the start of the group."""
        taken_over = {self.buffers[name].reuse for name in stored}
        return self.bytes + size <= TUNED.joined_bytes and not taken_over & self.made

    def _bytes(self, name: str) -> int:
        """What is allocated for a buffer that a kernel writes."""
        size = allocated(self.buffers[name])
        return size if isinstance(size, int) else TUNED.joined_bytes + 1

    def close(self) -> Iterator[Stages]:
        """The group, or its kernels one by one where there is nothing to gain."""
        if sum(map(len, self.stages)) > 1 and self.work >= self.threshold:
            yield self.stages
        else:
            yield from ([[kernel]] for stage in self.stages for kernel in stage)


def _is_shareable(kernel: Kernel, threshold: int) -> bool:
    """Whether the threads share its outer points: what they share otherwise is a region of its own."""
    work = total_work(kernel)
    if not isinstance(work, int) or work > TUNED.largest_joined * threshold:
        return False
    return make_plan(order_free(kernel), threshold).threads != "inner"
