"""Hypothesis strategies for the five documents. Everything that they draw verifies.

    from hypothesis import given
    from stagewire.testing.strategies import grads, meaningful

    @given(grads(vocabulary=meaningful("grad")))
    def test_my_pass_keeps_the_meaning(document): ...

The parts are drawn by `basics` (names, sizes, types, arguments), `graphs`, `bindings`, `captures`, `loops` and
`programs`; all of them are public.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from stagewire.codec import Document
from stagewire.errors import UnknownVersion
from stagewire.grad import Binding, Grad, PartitionReport, Rewrite
from stagewire.loop import Loop
from stagewire.prim import Prim
from stagewire.program import Program
from stagewire.testing import graphs as graph_strategies
from stagewire.testing import loops as loop_strategies
from stagewire.testing import programs as program_strategies
from stagewire.testing.bindings import Interface, backward_types, bindings, interfaces, with_gradients
from stagewire.testing.captures import captures
from stagewire.testing.graphs import ATEN, PRIMS, TORCH, Calls, graphs
from stagewire.testing.loops import loop_graphs
from stagewire.testing.programs import units
from stagewire.types import ValueType
from stagewire.vocabulary import vocabulary

__all__ = [
    "captures",
    "documents",
    "grads",
    "loops",
    "meaningful",
    "prims",
    "programs",
]


def meaningful(kind: str) -> Calls:
    """The elementwise ops alone, for "capture", "grad" or "prim": documents whose graphs an interpreter can run."""
    known = {"capture": TORCH, "grad": ATEN, "prim": PRIMS}
    if kind not in known:
        raise UnknownVersion(f"no vocabulary for {kind!r}; known: {', '.join(known)}")
    return dataclasses.replace(known[kind], opaque=None)


@dataclasses.dataclass(frozen=True)
class _Directions:
    """What `grads`, `prims`, `loops` and `programs` have in common."""

    interface: Interface
    binding: Binding
    forward: Any
    backward: Any
    backward_results: tuple[ValueType | None, ...]


def _directions(
    draw: st.DrawFn,
    body: Callable[[Sequence[ValueType], Sequence[str], Any], st.SearchStrategy[Any]],
    results: Callable[[Any], tuple[ValueType | None, ...]],
    joint: bool = False,
    sizes: bool = False,
) -> _Directions:
    """An interface, a forward, a binding, and (one time in two) a backward that fits it."""
    interface = draw(interfaces(loop_strategies.loop_dtypes))
    trains = draw(st.booleans())
    forward = draw(body(interface.types, interface.names, "forward"))
    found = results(forward)
    binding = draw(bindings(interface, found, trains, joint, sizes))
    backward = None
    if trains:
        backward = draw(body(backward_types(binding, interface, found), interface.names, "backward"))
        binding = with_gradients(draw, binding, len(backward.outputs))
    return _Directions(interface, binding, forward, backward, found)


def _graph_body(vocabulary: Calls) -> Callable[..., st.SearchStrategy[Any]]:
    return lambda inputs, symbols, phase: graphs(vocabulary, inputs, symbols, phase=phase)


@st.composite
def grads(draw: st.DrawFn, vocabulary: Calls = ATEN) -> Grad:
    """A `Grad`; with a joint graph in some of those that train."""
    joint = draw(st.booleans())
    found = _directions(draw, _graph_body(vocabulary), graph_strategies.result_types, joint, sizes=True)
    graph = None
    if joint and found.backward is not None:
        saved = tuple(found.backward_results[number] for number in found.binding.joint_saved)
        tangents = tuple(tangent.type for tangent in found.binding.tangents)
        inputs = (*found.interface.types, *(kind for kind in saved if kind is not None), *tangents)
        graph = draw(graphs(vocabulary, inputs, found.interface.names))
    kept = found.binding.joint_saved if graph is not None else ()
    binding = msgspec.structs.replace(found.binding, joint_saved=kept, joint=graph)
    report = draw(st.builds(PartitionReport, st.integers(0, 99), st.integers(0, 99), st.just(("add_1",))))
    rewrites = draw(st.lists(st.builds(Rewrite, st.just("attention"), st.sampled_from(("", "why")), st.booleans())))
    return Grad(
        binding=binding, forward=found.forward, backward=found.backward, joint=graph, partition=report,
        rewrites=tuple(rewrites),
    )  # fmt: skip


@st.composite
def prims(draw: st.DrawFn, called: Calls = PRIMS) -> Prim:
    """A `Prim`."""
    found = _directions(draw, _graph_body(called), graph_strategies.result_types, sizes=True)
    known = vocabulary("prims")
    opset = draw(st.integers(1, 3)) if known is None else known.version
    return Prim(binding=found.binding, forward=found.forward, backward=found.backward, opset=opset)


@st.composite
def loops(draw: st.DrawFn) -> Loop:
    """A `Loop`."""
    found = _directions(draw, lambda inputs, symbols, _: loop_graphs(inputs, symbols), loop_strategies.result_types)
    return Loop(binding=found.binding, forward=found.forward, backward=found.backward)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A `Program`; its sources are text, not code."""
    found = _directions(draw, lambda inputs, symbols, _: units(inputs, symbols), program_strategies.result_types)
    return Program(binding=found.binding, forward=found.forward, backward=found.backward)


def documents(*kinds: str) -> st.SearchStrategy[Document]:
    """A document of one of these kinds; of any kind without arguments."""
    known: dict[str, st.SearchStrategy[Document]] = {
        "capture": captures(),
        "grad": grads(),
        "prim": prims(),
        "loop": loops(),
        "program": programs(),
    }
    return st.one_of([known[kind] for kind in kinds or known])
