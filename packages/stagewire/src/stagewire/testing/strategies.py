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
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stagewire.codec import Document
from stagewire.errors import UnknownVersion
from stagewire.grad import Binding, Grad, Rewrite
from stagewire.graph import Graph
from stagewire.loop import Loop
from stagewire.prim import PartitionReport, Prim
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
from stagewire.upgrades import joined
from stagewire.vocabulary import vocabulary

Drawn = TypeVar("Drawn")


def meaningful(kind: str) -> Calls:
    """Elementwise ops and those that have an example, for "capture", "grad" or "prim": documents whose graphs an
    interpreter can run."""
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
    sizes: bool = False,
) -> _Directions:
    """An interface, a forward, a binding, and (one time in two) a backward that fits it."""
    interface = draw(interfaces(loop_strategies.loop_dtypes))
    trains = draw(st.booleans())
    forward = draw(body(interface.types, interface.names, "forward"))
    found = results(forward)
    binding = draw(bindings(interface, found, trains, sizes))
    backward = None
    if trains:
        backward = draw(body(backward_types(binding, interface, found), interface.names, "backward"))
        binding = with_gradients(draw, binding, len(backward.outputs))
    return _Directions(interface, binding, forward, backward, found)


def _graph_body(vocabulary: Calls) -> Callable[..., st.SearchStrategy[Any]]:
    return lambda inputs, symbols, phase: graphs(vocabulary, inputs, symbols, phase=phase)


def _joint(draw: st.DrawFn, vocabulary: Calls) -> tuple[Binding, Graph]:
    """A binding and a joint graph, whose forward calls may stand in checkpoints."""
    found = _directions(draw, _graph_body(vocabulary), graph_strategies.result_types, sizes=True)
    binding, joint = joined(found.binding, found.forward, found.backward)
    places = st.sampled_from((None, None, 0, 1))
    nodes = [replace(node, checkpoint=draw(places)) if node.phase == "forward" else node for node in joint.nodes]
    return binding, replace(joint, nodes=tuple(nodes))


@st.composite
def grads(draw: st.DrawFn, vocabulary: Calls = ATEN) -> Grad:
    """A `Grad`."""
    binding, joint = _joint(draw, vocabulary)
    rewrites = draw(st.lists(st.builds(Rewrite, st.just("attention"), st.sampled_from(("", "why")), st.booleans())))
    return Grad(binding=binding, joint=joint, rewrites=tuple(rewrites))


@st.composite
def prims(draw: st.DrawFn, called: Calls = PRIMS, cut: bool | None = None) -> Prim:
    """A `Prim`; `cut` in two, or not yet, or (by default) either."""
    known = vocabulary("prims")
    opset = draw(st.integers(1, 3)) if known is None else known.version
    if not (draw(st.booleans()) if cut is None else cut):
        binding, joint = _joint(draw, called)
        return Prim(binding=binding, joint=joint, opset=opset)
    found = _directions(draw, _graph_body(called), graph_strategies.result_types, sizes=True)
    report = draw(st.builds(PartitionReport, st.integers(0, 99), st.integers(0, 99), st.just(("add_1",))))
    directions = {"forward": found.forward, "backward": found.backward}
    return Prim(binding=found.binding, **directions, partition=report, opset=opset)


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


def examples(strategy: st.SearchStrategy[Drawn], count: int) -> list[Drawn]:
    """The first `count` examples of a strategy, the same in every run."""
    found: list[Drawn] = []

    @settings(max_examples=count, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(strategy)
    def collect(drawn: Drawn) -> None:
        found.append(drawn)

    collect()
    return found


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
