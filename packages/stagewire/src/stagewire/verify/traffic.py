"""Which buffers the steps of a loop graph read and write."""

from __future__ import annotations

from stagewire.graph import references
from stagewire.loop import Buffer, Extern, Free, Kernel, Load, Step, Store
from stagewire.statements import accesses

Traffic = tuple[set[str], set[str]]
"""Names of the buffers that a step reads, and of those that it writes."""


def reads_and_writes(step: Step) -> Traffic:
    """Names of the buffers that a step reads and writes."""
    match step:
        case Kernel():
            reads = {s.buffer for _, _, s in accesses(step) if isinstance(s, Load) or s.mode == "atomic_add"}
            return reads, {s.buffer for _, _, s in accesses(step) if isinstance(s, Store)}
        case Extern():
            names = {name for arg in (*step.args, *step.kwargs.values()) for name in references(arg)}
            return names, {name for name in step.results if name}
        case Free():
            return set(), set()


def owner_of(name: str, buffers: dict[str, Buffer]) -> str:
    """The buffer whose memory this one uses."""
    return buffers[name].base or name
