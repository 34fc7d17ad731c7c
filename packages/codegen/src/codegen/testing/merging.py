"""Several drawn graphs as one, so that their kernels share functions, and perhaps a kernel that writes an input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from hypothesis import strategies as st
from msgspec.structs import replace

from codegen.testing.strategies import (
    at_value,
    indirect_graphs,
    masked_graphs,
    pointwise_graphs,
    reduction_graphs,
    sample_inputs,
    symbolic_graphs,
)
from codegen.testing.vocabulary import hoisted_graphs, vocabulary_graphs
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    Index,
    Kernel,
    Load,
    LoopGraph,
    Section,
    Statement,
    Store,
    Term,
)  # fmt: skip
from stagewire.types import contiguous


@st.composite
def graph_lists(draw: st.DrawFn) -> list[LoopGraph]:
    """Two to four graphs of a kernel or two, over numbers and over the symbol n, in any order."""
    one_kernel = pointwise_graphs(), reduction_graphs((1, 2), (100, 130, 9000)), indirect_graphs(), masked_graphs()
    over_numbers = st.one_of(*one_kernel, vocabulary_graphs(), hoisted_graphs())
    drawn = draw(st.lists(over_numbers, min_size=1, max_size=3))
    last = symbolic_graphs() if draw(st.booleans()) else over_numbers
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
        at, kind = Index(0, (Term(1, AxisAtom("z")),)), contiguous("float32", (64,))
        body = (Load("v", "own", at, "float32"), Compute("w", "add", (Ref("v"), Ref("v")), "float32"),
                Store("updated", at, Ref("w")))  # fmt: skip
        buffers += [Buffer("own", kind, "input"), Buffer("updated", kind, "kernel", reuse="own")]
        steps.append(Kernel("update", (Axis("z", 64),), (Section((), body),)))
        inputs, outputs = (*inputs, "own"), [*outputs, Ref("updated")]
    return LoopGraph(
        buffers=tuple(buffers), inputs=inputs, outputs=tuple(outputs), steps=tuple(steps), symbols=symbols
    )  # fmt: skip


def sampled(graphs: Sequence[LoopGraph], n: int, seed: int) -> dict[str, torch.Tensor]:
    """Flat memory for the inputs of what `merged` makes of some graphs, at a value of n; of some seeds with an index
    that is out of range."""
    found = [at_value(graph, n) if graph.symbols else graph for graph in graphs]
    drawn = [sample_inputs(graph, seed + number) for number, graph in enumerate(found)]
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
        steps=tuple([_renamed(step, names, number) for step in graph.steps]),  # type: ignore[arg-type]
    )


def _renamed(kernel: Kernel, names: Mapping[str, str], number: int) -> Kernel:
    def of(statement: Statement) -> Statement:
        is_access = isinstance(statement, Load | Store)
        return replace(statement, buffer=names[statement.buffer]) if is_access else statement

    sections = [Section(section.axes, tuple(map(of, section.statements))) for section in kernel.sections]
    return replace(kernel, name=f"{kernel.name}_{number}", sections=tuple(sections))
