"""The contract of the stage: a lowered graph means what the graph meant, for generated programs."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primops.stage import Options, lower_graph
from primops.testing.conformance import check_graphs
from primops.testing.strategies import KINDS, Program, programs
from stagewire.graph import Ref
from stagewire.parser import parse_graph
from stagewire.printer import print_graph
from stagewire.verify import verify_graph

quick = settings(deadline=None, suppress_health_check=list(HealthCheck))


@settings(quick, max_examples=150)
@given(programs())
def test_lowering_keeps_the_meaning(program: Program) -> None:
    graph, inputs = program
    lowered = lower_graph(graph)
    verify_graph(lowered)
    check_graphs(graph, lowered, inputs)
    outputs = [arg.name for arg in lowered.outputs if isinstance(arg, Ref)]
    assert len(set(outputs)) == len(outputs)


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(quick, max_examples=12)
@given(st.data())
def test_each_kind_without_passes(kind: str, data: st.DataObject) -> None:
    graph, inputs = data.draw(programs(max_nodes=4, ops=(kind, "unary", "view")))
    lowered = lower_graph(graph, options=Options(passes=()))
    verify_graph(lowered)
    check_graphs(graph, lowered, inputs)


@settings(quick, max_examples=40)
@given(programs())
def test_lowered_graphs_print_and_parse(program: Program) -> None:
    lowered = lower_graph(program[0])
    assert parse_graph(print_graph(lowered)) == lowered
