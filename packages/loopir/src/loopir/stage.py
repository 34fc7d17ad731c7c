"""The stage: `Prim` in, `Loop` out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from msgspec.structs import replace

from loopir.pipeline import KERNEL_PASSES, PASSES, KernelPass, SchedulePass, schedule_graph
from stagewire.grad import Binding, Fresh, SavedResult, ViewOf
from stagewire.graph import Graph, Ref
from stagewire.loop import Loop, LoopGraph
from stagewire.prim import Prim
from stagewire.types import TensorType


@dataclass(frozen=True)
class Options:
    """The passes, in order; see `loopir.pipeline`. `passes=UNFUSED` fuses nothing."""

    passes: tuple[SchedulePass, ...] = PASSES
    kernel_passes: tuple[KernelPass, ...] = KERNEL_PASSES


@dataclass(frozen=True)
class LoopIR:
    """Lowers and fuses both directions. Stateless: one instance serves any number of threads."""

    name: str = "loopir"
    version: str = "1"
    consumes: str = "prim"
    produces: str = "loop"

    Options: ClassVar[type[Options]] = Options

    def run(self, document: Prim, options: Options | None = None) -> Loop:
        """The loops of both graphs, under the same binding."""
        options = options or Options()
        passes, kernel_passes = options.passes, options.kernel_passes
        forward = schedule_graph(document.forward, private_results(document.binding), passes, kernel_passes)
        backward = None
        if document.backward is not None:
            graph = with_saved_strides(document.backward, document.binding, forward)
            backward = schedule_graph(graph, frozenset(), passes, kernel_passes)
        return Loop(binding=document.binding, forward=forward, backward=backward)


def with_saved_strides(backward: Graph, binding: Binding, forward: LoopGraph) -> Graph:
    """The backward graph, reading what the forward saves for it in the strides in which it is saved."""
    types = {buffer.name: buffer.type for buffer in forward.buffers}
    inputs = list(backward.inputs)
    for place, slot in enumerate(binding.saved):
        output = forward.outputs[slot.result] if isinstance(slot, SavedResult) else None
        type = inputs[place].type
        if isinstance(output, Ref) and output.name in types and isinstance(type, TensorType):
            stride = types[output.name].stride
            if stride != type.stride:
                inputs[place] = replace(inputs[place], type=replace(type, stride=stride))
    return replace(backward, inputs=tuple(inputs))


def private_results(binding: Binding) -> frozenset[int]:
    """Forward results that only the backward sees: they may share memory with each other."""
    saved = {s.result for s in binding.saved if isinstance(s, SavedResult)}
    seen = {o.result for o in binding.outputs if isinstance(o, Fresh)}
    seen |= {o.base for o in binding.outputs if isinstance(o, ViewOf) and o.of == "result"}
    seen |= {m.result for m in binding.mutations}
    return frozenset(saved - seen)
