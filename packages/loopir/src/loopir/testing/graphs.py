"""Prim graphs written as text (stagewire's printed form), as documents."""

from __future__ import annotations

from collections.abc import Mapping

from loopir.pipeline import KERNEL_PASSES, PASSES, KernelPass, SchedulePass
from loopir.stage import LoopIR, Options
from stagewire.capture import Symbol
from stagewire.grad import Binding, BoundInput, Fresh
from stagewire.graph import Graph
from stagewire.loop import Extern, Kernel, Loop, LoopGraph
from stagewire.parser import parse_graph
from stagewire.prim import Prim
from stagewire.printer import print_document
from stagewire.sizes import NO_HINTS
from stagewire.types import TensorType

SOFTMAX = """\
input %x: f32[16, 100]
%top: f32[16] = prims.amax(%x, [1])
%wide: f32[16, 100] = prims.broadcast_in_dim(%top, [16, 100], [0])
%moved: f32[16, 100] = prims.sub(%x, %wide)
%e: f32[16, 100] = prims.exp(%moved)
%sum: f32[16] = prims.sum(%e, [1])
%sums: f32[16, 100] = prims.broadcast_in_dim(%sum, [16, 100], [0])
%y: f32[16, 100] = prims.div(%e, %sums)
return %y
"""

LAYER_NORM = """\
input %x: f32[4, 8, 48]
input %w: f32[48]
%var: f32[4, 8], %mean: f32[4, 8] = prims.var_mean(%x, [2], 0)
%safe: f32[4, 8] = prims.add(%var, 1e-05)
%rstd: f32[4, 8] = prims.rsqrt(%safe)
%means: f32[4, 8, 48] = prims.broadcast_in_dim(%mean, [4, 8, 48], [0, 1])
%centred: f32[4, 8, 48] = prims.sub(%x, %means)
%rstds: f32[4, 8, 48] = prims.broadcast_in_dim(%rstd, [4, 8, 48], [0, 1])
%normal: f32[4, 8, 48] = prims.mul(%centred, %rstds)
%ws: f32[4, 8, 48] = prims.broadcast_in_dim(%w, [4, 8, 48], [2])
%y: f32[4, 8, 48] = prims.mul(%normal, %ws)
return %y, %mean, %rstd
"""

GELU = """\
input %x: f32[8, 32]
%half: f32[8, 32] = prims.mul(%x, 0.5)
%scaled: f32[8, 32] = prims.mul(%x, 0.7071067811865476)
%erf: f32[8, 32] = prims.erf(%scaled)
%one: f32[8, 32] = prims.add(%erf, 1.0)
%y: f32[8, 32] = prims.mul(%half, %one)
return %y
"""

BATCH_NORM = """\
input %x: f32[4, 6, 5, 7]
input %running: f32[6]
%var: f32[6], %mean: f32[6] = prims.var_mean(%x, [0, 2, 3], 0)
%old: f32[6] = prims.mul(%running, 0.9)
%new: f32[6] = prims.mul(%mean, 0.1)
%updated: f32[6] = prims.add(%old, %new)
%safe: f32[6] = prims.add(%var, 1e-05)
%rstd: f32[6] = prims.rsqrt(%safe)
%means: f32[4, 6, 5, 7] = prims.broadcast_in_dim(%mean, [4, 6, 5, 7], [1])
%centred: f32[4, 6, 5, 7] = prims.sub(%x, %means)
%rstds: f32[4, 6, 5, 7] = prims.broadcast_in_dim(%rstd, [4, 6, 5, 7], [1])
%normal: f32[4, 6, 5, 7] = prims.mul(%centred, %rstds)
%y: f32[4, 6, 5, 7] = prims.maximum(%normal, 0.0)
return %y, %updated
"""

ATTENTION = """\
input %x: f32[2, 8, 24]
input %w: f32[24, 16]
%rows: f32[16, 24] = prims.reshape(%x, [16, 24])
%qk: f32[16, 16] = aten.mm.default(%rows, %w)
%cut: f32[16, 8]{16, 1} = prims.slice(%qk, [0, 0], [16, 8], [1, 1])
%rest: f32[16, 8]{16, 1} = prims.slice(%qk, [0, 8], [16, 16], [1, 1])
%q: f32[2, 8, 8]{128, 16, 1} = prims.reshape(%cut, [2, 8, 8])
%k: f32[2, 8, 8]{128, 16, 1} = prims.reshape(%rest, [2, 8, 8])
%kt: f32[2, 8, 8]{128, 1, 16} = prims.permute(%k, [0, 2, 1])
%scores: f32[2, 8, 8] = aten.bmm.default(%q, %kt)
%scaled: f32[2, 8, 8] = prims.mul(%scores, 0.5)
return %scaled
"""

SAMPLES: dict[str, str] = {
    "softmax": SOFTMAX, "layer_norm": LAYER_NORM, "gelu": GELU, "batch_norm": BATCH_NORM, "attention": ATTENTION,
}  # fmt: skip


def document(graph: Graph | str, hints: Mapping[str, int] = NO_HINTS) -> Prim:
    """A forward-only document of a graph, or of its text, with symbols that were seen at these sizes."""
    graph = parse_graph(graph) if isinstance(graph, str) else graph
    inputs = [(v.name, v.type) for v in graph.inputs if isinstance(v.type, TensorType)]
    binding = Binding(
        inputs=tuple(BoundInput(name, type) for name, type in inputs),
        outputs=tuple(Fresh(n) for n in range(len(graph.outputs))),
        symbols=tuple(Symbol(name, None, hint, 2) for name, hint in hints.items()),
    )
    return Prim(binding=binding, forward=graph)


def lowered(
    text: str,
    passes: tuple[SchedulePass, ...] = PASSES,
    kernel_passes: tuple[KernelPass, ...] = KERNEL_PASSES,
    hints: Mapping[str, int] = NO_HINTS,
) -> LoopGraph:
    """The loops of a graph given as text, by chosen passes."""
    return LoopIR().run(document(text, hints), Options(passes=passes, kernel_passes=kernel_passes)).forward


def kernels(graph: LoopGraph) -> list[Kernel]:
    """The kernels, in order."""
    return [step for step in graph.steps if isinstance(step, Kernel)]


def externs(graph: LoopGraph) -> list[Extern]:
    """The calls of ATen, in order."""
    return [step for step in graph.steps if isinstance(step, Extern)]


def steps_text(graph: LoopGraph) -> str:
    """Buffers, steps and decisions of one direction, as stagewire prints them."""

    lines = print_document(Loop(binding=Binding(inputs=(), outputs=()), forward=graph)).splitlines()
    start = next(n for n, line in enumerate(lines) if line.strip() == "forward {")
    return "\n".join(line[4:] for line in lines[start + 1 : -2]) + "\n"
