"""Several drawn graphs as one, so that their kernels share functions, and perhaps a kernel that writes an input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from msgspec.structs import replace

from codegen.testing import strategies
from codegen.testing.vocabulary import hoisted_graphs, vocabulary_graphs
from stagewire import loop
from stagewire.graph import Ref
from stagewire.loop import LoopGraph
from stagewire.statements import map_buffers
from stagewire.types import contiguous


@st.composite
def graph_lists(draw: st.DrawFn) -> list[LoopGraph]:
    """Two to four graphs of a kernel or two, over numbers and over the symbol n, in any order."""
    over_numbers = st.one_of(
        strategies.pointwise_graphs(), strategies.reduction_graphs((1, 2), (100, 130, 9000)),
        strategies.indirect_graphs(), strategies.masked_graphs(), vocabulary_graphs(), hoisted_graphs(),
    )  # fmt: skip
    drawn = draw(st.lists(over_numbers, min_size=1, max_size=3))
    last = strategies.symbolic_graphs() if draw(st.booleans()) else over_numbers
    return draw(st.permutations([*drawn, draw(last)]))


def merged(graphs: Sequence[LoopGraph], *, updates: bool) -> LoopGraph:
    """One graph of all their kernels. updates: the last one doubles an input in its memory."""
    parts = [_numbered(graph, number) for number, graph in enumerate(graphs)]
    buffers = [buffer for part in parts for buffer in part.buffers]
    outputs = [output for part in parts for output in part.outputs]
    steps = [step for part in parts for step in part.steps]
    symbols = tuple(dict.fromkeys(name for part in parts for name in part.symbols))
    inputs = tuple(dict.fromkeys((*symbols, *(name for part in parts for name in part.inputs))))
    if updates:
        at, kind = loop.Index(0, (loop.Term(1, loop.AxisAtom("z")),)), contiguous("float32", (64,))
        body = (loop.Load("v", "own", at, "float32"), loop.Compute("w", "add", (Ref("v"), Ref("v")), "float32"),
                loop.Store("updated", at, Ref("w")))  # fmt: skip
        buffers += [loop.Buffer("own", kind, "input"), loop.Buffer("updated", kind, "kernel", reuse="own")]
        steps.append(loop.Kernel("update", (loop.Axis("z", 64),), (loop.Section((), body),)))
        inputs, outputs = (*inputs, "own"), [*outputs, Ref("updated")]
    return LoopGraph(
        buffers=tuple(buffers), inputs=inputs, outputs=tuple(outputs), steps=tuple(steps), symbols=symbols
    )  # fmt: skip


def sampled(graphs: Sequence[LoopGraph], n: int, seed: int) -> dict[str, torch.Tensor]:
    """Flat memory for the inputs of what `merged` makes of some graphs, at a value of n; of some seeds with an index
    that is out of range."""
    found = [strategies.at_value(graph, n) if graph.symbols else graph for graph in graphs]
    drawn = [strategies.sample_inputs(graph, seed + number) for number, graph in enumerate(found)]
    for inputs in drawn:
        if "place" in inputs and seed % 3 == 1:
            inputs["place"][-1] = 1 << 40
    named = {f"{name}_{number}": one for number, inputs in enumerate(drawn) for name, one in inputs.items()}
    return named | {"own": torch.arange(64.0)}


def _numbered(graph: LoopGraph, number: int) -> LoopGraph:
    """With a number behind the names of buffers and kernels."""
    names = {buffer.name: f"{buffer.name}_{number}" for buffer in graph.buffers}
    return replace(
        graph,
        buffers=tuple([replace(buffer, name=names[buffer.name]) for buffer in graph.buffers]),
        inputs=tuple([names.get(name, name) for name in graph.inputs]),
        outputs=tuple([Ref(names[output.name]) for output in graph.outputs]),  # type: ignore[union-attr]
        steps=tuple([replace(map_buffers(step, names), name=f"{step.name}_{number}") for step in graph.steps]),  # type: ignore[arg-type]
    )
