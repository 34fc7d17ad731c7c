"""Which buffers share memory."""

from __future__ import annotations

from stagewire.loop import LoopGraph


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
