"""The passes, in order. A stage option replaces the list; each pass can be left out.

lower          one nest a prim
PASSES         schedule to schedule: what is computed where, in which layout
freeze         coordinates become offsets
KERNEL_PASSES  loop graph to loop graph: loop order, axes, memory
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from loopir.lowering import lower_graph
from loopir.passes.alias_views import AliasViews
from loopir.passes.channels_last import ChannelsLast
from loopir.passes.choose_layouts import ChooseLayouts
from loopir.passes.fuse_nests import FuseNests
from loopir.passes.inline_pointwise import InlinePointwise
from loopir.passes.keep_float32 import KeepFloat32
from loopir.passes.order_axes import MergeAxes, OrderAxes
from loopir.passes.order_items import OrderItems
from loopir.passes.pad_products import PadOperands, PadResults
from loopir.passes.plan_memory import MergeScratch, PlanMemory
from loopir.passes.read_host_scalars import ReadHostScalars
from loopir.passes.recompute_locals import RecomputeLocals
from loopir.passes.remove_dead import RemoveDead
from loopir.passes.split_axes import SplitAxes
from loopir.passes.split_reductions import SplitReductions
from loopir.passes.split_scans import SplitScans
from loopir.passes.sum_few_rows import SumFewRows
from loopir.passes.sum_one_hot import SumOneHot
from loopir.passes.sum_over_rows import SumOverRows
from loopir.passes.unroll_choices import UnrollChoices
from loopir.passes.update_inputs import UpdateInputs
from loopir.repeats import copied_repeats
from loopir.schedule import Schedule, freeze
from stagewire.flex_attention import functions_of, with_forms
from stagewire.grad import Binding
from stagewire.graph import Graph, references
from stagewire.loop import Loop, LoopGraph
from stagewire.parser import parse_graph
from stagewire.passes import run_passes
from stagewire.printer import print_document
from stagewire.sizes import NO_HINTS, Hints
from stagewire.verify import verify_loop_graph


class SchedulePass(Protocol):
    """A pass before layout is fixed."""

    name: str

    def run(self, schedule: Schedule) -> Schedule: ...


class KernelPass(Protocol):
    """A pass on frozen kernels. One that decides by the whole graph, and not by a few steps that follow each other, has
    `sees_whole_graph = True`."""

    name: str

    def run(self, graph: LoopGraph) -> LoopGraph: ...


PASSES: tuple[SchedulePass, ...] = (
    ReadHostScalars(),
    ChannelsLast(),
    PadResults(),
    InlinePointwise(),
    SumOneHot(),
    RemoveDead(),
    SumFewRows(),
    UnrollChoices(),
    SplitReductions(),
    SplitScans(),
    ChooseLayouts(),
    PadOperands(),
    AliasViews(),
    SplitAxes(),
    FuseNests(),
    RecomputeLocals(),
    RemoveDead(),
    SumOverRows(),
    OrderItems(),
)
KERNEL_PASSES: tuple[KernelPass, ...] = (
    KeepFloat32(),
    OrderAxes(),
    MergeAxes(),
    MergeScratch(),
    UpdateInputs(),
    PlanMemory(),
)

_NO_LIMIT = 1 << 60
EVERYWHERE = InlinePointwise(
    heavy_cpu=_NO_LIMIT, heavy_gpu=_NO_LIMIT, largest_cost=3000, largest_reads=100, largest_depth=200,
    costly=_NO_LIMIT, gathers=_NO_LIMIT,
)  # fmt: skip
"""For functions among the arguments of a call, which have no memory of their own."""

UNFUSED: tuple[SchedulePass, ...] = (RemoveDead(), ChooseLayouts())
"""Every prim in a kernel of its own: slow, and simple to look at."""


def schedule_graph(
    graph: Graph, private: frozenset[int] = frozenset(), passes: Sequence[SchedulePass] = PASSES,
    kernel_passes: Sequence[KernelPass] = KERNEL_PASSES, updates: tuple[tuple[int, str], ...] = (),
    ending: frozenset[str] = frozenset(), tangents: frozenset[str] = frozenset(), hints: Hints = NO_HINTS,
    repeats: bool = True,
) -> LoopGraph:  # fmt: skip
    """One direction, from prims to scheduled loops; private, updates, ending, tangents, hints: as in `Schedule` and
    `LoopGraph`.

    repeats: whether the passes before the first that `sees_whole_graph` are given a few copies only of what repeats
    itself in the graph (`loopir.repeats`).
    """

    def verify(reached: Schedule, *sizes: Mapping[str, int]) -> None:
        verify_loop_graph(freeze(reached), *sizes)

    graph = with_loops(graph, passes, kernel_passes)
    places = [n for n, one in enumerate(kernel_passes) if getattr(one, "sees_whole_graph", False)]
    first = places[0] if places else len(kernel_passes)

    def scheduled(graph: Graph, private: frozenset[int], updated: frozenset[int]) -> LoopGraph:
        names = frozenset(name for number in updated for name in references(graph.outputs[number]))
        schedule = lower_graph(graph, private, hints)
        schedule = replace(schedule, ending=ending, tangents=tangents, updated=names)
        schedule = run_passes("loopir", passes, schedule, verify)
        return run_passes("loopir", kernel_passes[:first], freeze(schedule), verify_loop_graph)

    make = scheduled if not repeats else partial(copied_repeats, scheduled, (ending, tangents))
    loops = make(graph, private, frozenset(number for number, _ in updates))
    return run_passes("loopir", kernel_passes[first:], replace(loops, updates=updates), verify_loop_graph)


def with_loops(graph: Graph, passes: Sequence[SchedulePass], kernel_passes: Sequence[KernelPass]) -> Graph:
    """The graph with the functions among its arguments as loops, each of which is to be one kernel."""
    if not any(map(functions_of, graph.nodes)):
        return graph

    inside = [EVERYWHERE if isinstance(one, InlinePointwise) else one for one in passes]

    def form(text: str) -> str:
        loops = schedule_graph(parse_graph(text), passes=inside, kernel_passes=kernel_passes)
        return print_document(Loop(binding=Binding(inputs=(), outputs=()), forward=loops))

    nodes = [replace(node, args=with_forms(node.args, form)) if functions_of(node) else node for node in graph.nodes]
    return replace(graph, nodes=tuple(nodes))
