"""Which buffers share memory, which of them a kernel touches, and what is allocated for one."""

from __future__ import annotations

from stagewire.expr import Dim
from stagewire.loop import Buffer, Kernel, Load, LoopGraph, Store
from stagewire.types import ITEM_SIZE, extent


def memory_roots(graph: LoopGraph) -> dict[str, str]:
    """For each buffer, the one that first owned its memory (through views and reuse)."""
    owner = {buffer.name: buffer.base or buffer.reuse for buffer in graph.buffers}
    roots: dict[str, str] = {}
    for name in owner:
        chain = [name]
        while owner.get(chain[-1]) is not None and chain[-1] not in roots:
            chain.append(owner[chain[-1]])  # type: ignore[arg-type]
        root = roots.get(chain[-1], chain[-1])
        roots.update(dict.fromkeys(chain, root))
    return roots


def accesses(kernel: Kernel) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The buffers that a kernel loads, and those that it stores to."""
    statements = [s for section in kernel.sections for s in section.statements]
    loaded = dict.fromkeys(s.buffer for s in statements if isinstance(s, Load))
    stored = dict.fromkeys(s.buffer for s in statements if isinstance(s, Store))
    return tuple(loaded), tuple(stored)


def allocated(buffer: Buffer) -> Dim:
    """The bytes that are allocated for a buffer which a kernel writes."""
    is_new = buffer.role == "kernel" and buffer.reuse is None
    return extent(buffer.type) * ITEM_SIZE[buffer.type.dtype] if is_new else 0
