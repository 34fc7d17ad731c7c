"""Which buffers share memory, which of them a kernel touches, and what is allocated for one."""

from __future__ import annotations

from collections.abc import Mapping

from stagewire import statements
from stagewire.expr import Dim
from stagewire.loop import BY_VALUE, Buffer, Index, Kernel, Load, LoopGraph, Section, Store
from stagewire.types import ITEM_SIZE, TensorType, extent


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


def allocated(buffer: Buffer) -> Dim:
    """The bytes that are allocated for a buffer which a kernel writes."""
    is_new = buffer.role == "kernel" and buffer.reuse is None
    return extent(buffer.type) * ITEM_SIZE[buffer.type.dtype] if is_new else 0


def buffers_of(kernel: Kernel) -> tuple[str, ...]:
    """The buffers that a kernel reads or writes, in order of first use."""
    return tuple(dict.fromkeys(statements.buffers_of(kernel)))


def indices_of(section: Section) -> list[Index]:
    """Where a section reads and writes."""
    return [one.index for one in statements.select((section,), Load | Store)]


def taken_by_value(kernel: Kernel, types: Mapping[str, TensorType]) -> frozenset[str]:
    """Numbers on the CPU that a kernel on another device reads: it takes their values when it is launched."""
    names = buffers_of(kernel)
    if all(types[name].device == "cpu" for name in names):
        return frozenset()
    written = set(statements.writes_of(kernel))
    single = {name for name in names if (types[name].device, types[name].shape) == ("cpu", ())}
    return frozenset(name for name in single - written if types[name].dtype in BY_VALUE)
