"""Memory for scans of few long rows, in which programs tell each other what their parts come to (`scans.py`)."""

from __future__ import annotations

from msgspec.structs import replace

from codegen.triton.plan import plan
from codegen.triton.scans import memory_of, words_of
from stagewire.loop import Axis, AxisAtom, Buffer, Free, Index, Kernel, LoopGraph, Scan, Section, Step, Store, Term
from stagewire.sizes import NO_HINTS, Hints
from stagewire.statements import points_of, select
from stagewire.types import contiguous


def with_lookback(graph: LoopGraph, hints: Hints = NO_HINTS) -> LoopGraph:
    """The graph with the memory of its chained kernels, and with what clears it."""
    devices = {buffer.name: buffer.type.device for buffer in graph.buffers}
    steps: list[Step] = []
    buffers = list(graph.buffers)
    for step in graph.steps:
        tiles = plan(step, hints) if isinstance(step, Kernel) and select(step.sections, Scan) else None
        if tiles is None or not tiles.chained:
            steps.append(step)
            continue
        kernel, name = tiles.kernel, memory_of(tiles.kernel)
        size = 1 + points_of(kernel.axes) * tiles.parts * sum(map(words_of, select(kernel.sections, Scan)))
        device = next(devices[s.buffer] for s in select(kernel.sections, Store))
        buffers.append(Buffer(name, replace(contiguous("int64", (size,)), device=device), "kernel"))
        clear = Store(name, Index(0, (Term(1, AxisAtom("i")),)), 0)
        steps += [Kernel(f"{kernel.name}_clear", (Axis("i", size),), (Section((), (clear,)),)), step, Free(name)]
    return replace(graph, steps=tuple(steps), buffers=tuple(buffers))
