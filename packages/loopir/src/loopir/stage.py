"""The stage: a `Prim` that is cut in, `Loop` out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from msgspec.structs import replace

from loopir.passes.keep_float32 import KeepFloat32
from loopir.pipeline import KERNEL_PASSES, PASSES, KernelPass, SchedulePass, schedule_graph
from stagewire.grad import Binding, SavedResult, public_results
from stagewire.graph import Graph, Ref
from stagewire.graph_passes import with_strides_of
from stagewire.loop import Loop, LoopGraph
from stagewire.prim import Prim
from stagewire.sizes import hints_of
from stagewire.stage import expect
from stagewire.types import TensorType


@dataclass(frozen=True)
class Options:
    """What runs on both directions, in order; `loopir.pipeline` has the lists.

    passes: on schedules, before layouts are fixed: fusion, layouts. `UNFUSED` fuses nothing.
    kernel_passes: on kernels over memory: the order of loops, what memory is used again.
    numerics: "eager" rounds to half precision wherever eager stores (no `KeepFloat32`).
    repeats: whether of what repeats itself in a graph a few copies are scheduled, and the others copied
        (`loopir.repeats`).
    """

    passes: tuple[SchedulePass, ...] = PASSES
    kernel_passes: tuple[KernelPass, ...] = KERNEL_PASSES
    numerics: Literal["default", "eager"] = "default"
    repeats: bool = True


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
        expect(document, "cut", self.name)
        assert document.forward is not None
        options = options or Options()
        passes, kernel_passes = options.passes, options.kernel_passes
        if options.numerics == "eager":
            kernel_passes = tuple(one for one in kernel_passes if not isinstance(one, KeepFloat32))
        binding = document.binding
        updates = possible_updates(binding, document.forward)
        hints = hints_of(binding.symbols)
        schedule = partial(
            schedule_graph, passes=passes, kernel_passes=kernel_passes, hints=hints, repeats=options.repeats
        )
        forward = schedule(document.forward, private_results(binding), updates=updates)
        backward = None
        if document.backward is not None:
            graph = with_strides_of(document.backward, saved_types(document.backward, binding, forward))
            ending = ending_inputs(graph, binding)
            tangents = frozenset(value.name for value in graph.inputs[len(binding.saved) :])
            backward = schedule(graph, ending=ending, tangents=tangents)
        return Loop(binding=with_updates(binding, forward), forward=forward, backward=backward)


def possible_updates(binding: Binding, forward: Graph) -> tuple[tuple[int, str], ...]:
    """(forward result, input) for the mutations that autograd does not see, of what the backward does not read."""
    seen = [*public_results(binding), *(s.result for s in binding.saved if isinstance(s, SavedResult))]
    return tuple(
        (m.result, forward.inputs[m.input].name)
        for m in binding.mutations
        if not m.under_grad and not m.in_place and seen.count(m.result) == 1
    )


def with_updates(binding: Binding, forward: LoopGraph) -> Binding:
    """The binding, in which the mutations are marked that the forward makes itself."""
    done = {b.name for b in forward.buffers if b.reuse is not None and b.reuse in forward.inputs}
    numbers = {n for n, arg in enumerate(forward.outputs) if isinstance(arg, Ref) and arg.name in done}
    if not numbers:
        return binding
    mutations = tuple(replace(m, in_place=True) if m.result in numbers else m for m in binding.mutations)
    return replace(binding, mutations=mutations)


def saved_types(backward: Graph, binding: Binding, forward: LoopGraph) -> list[TensorType | None]:
    """How the forward saves each input of the backward, where it does."""
    types = {buffer.name: buffer.type for buffer in forward.buffers}
    saved = [forward.outputs[slot.result] if isinstance(slot, SavedResult) else None for slot in binding.saved]
    found = [types.get(output.name) if isinstance(output, Ref) else None for output in saved]
    return found + [None] * (len(backward.inputs) - len(found))


def ending_inputs(backward: Graph, binding: Binding) -> frozenset[str]:
    """What the backward alone has: values saved for it that no user sees, and the gradients that it is given."""
    private = private_results(binding)
    kept = {
        n for n, slot in enumerate(binding.saved) if not isinstance(slot, SavedResult) or slot.result not in private
    }
    values = enumerate(backward.inputs)
    return frozenset(value.name for n, value in values if n not in kept and isinstance(value.type, TensorType))


def private_results(binding: Binding) -> frozenset[int]:
    """Forward results that only the backward sees: they may share memory with each other."""
    saved = {s.result for s in binding.saved if isinstance(s, SavedResult)}
    return frozenset(saved.difference(public_results(binding)))
