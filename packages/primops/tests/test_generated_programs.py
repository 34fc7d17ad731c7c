"""The contract of the stage: a lowered graph means what the graph meant, for generated programs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primops.interpret import interpret
from primops.stage import lower_graph
from primops.testing.strategies import KINDS, Program, programs
from primops.verify import verify_graph
from stagewire.graph import Graph, Ref
from stagewire.parser import parse_graph
from stagewire.printer import print_graph

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}


def assert_same_meaning(before: Graph, after: Graph, inputs: tuple[torch.Tensor, ...]) -> None:
    torch.manual_seed(0)
    expected = interpret(before, [x.clone() for x in inputs])
    torch.manual_seed(0)
    given_ = interpret(after, [x.clone() for x in inputs])
    for a, b in zip(given_, expected, strict=True):
        assert a.stride() == b.stride() or b.numel() == 0
        tolerance = TOLERANCE.get(b.dtype, 0.0)
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert torch.equal(torch.rand(3), _stream_after(before, inputs))


def _stream_after(graph: Graph, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    torch.manual_seed(0)
    interpret(graph, [x.clone() for x in inputs])
    return torch.rand(3)


quick = settings(deadline=None, suppress_health_check=list(HealthCheck))


@settings(quick, max_examples=150)
@given(programs())
def test_lowering_keeps_the_meaning(program: Program) -> None:
    graph, inputs = program
    lowered = lower_graph(graph)
    verify_graph(lowered)
    assert_same_meaning(graph, lowered, inputs)
    outputs = [arg.name for arg in lowered.outputs if isinstance(arg, Ref)]
    assert len(set(outputs)) == len(outputs)


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(quick, max_examples=12)
@given(st.data())
def test_each_kind_without_passes(kind: str, data: st.DataObject) -> None:
    graph, inputs = data.draw(programs(max_nodes=4, ops=(kind, "unary", "view")))
    lowered = lower_graph(graph, passes=())
    verify_graph(lowered)
    assert_same_meaning(graph, lowered, inputs)


@settings(quick, max_examples=40)
@given(programs())
def test_lowered_graphs_print_and_parse(program: Program) -> None:
    lowered = lower_graph(program[0])
    assert parse_graph(print_graph(lowered)) == lowered
