from __future__ import annotations

import pytest
import torch

from primops.errors import InterpretFault
from primops.interpret import Interpreter, interpret
from stagewire.errors import UnknownOp
from stagewire.parser import parse_graph

TWICE = parse_graph("""
input %x: f32[2, 3]
%y: f32[2, 3] = prims.add(%x, %x)
%z: f32[3] = prims.sum(%y, [0])
return %z, %x, 5
""")


def test_runs_prims_and_returns_literals() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    z, same, five = interpret(TWICE, [x])
    assert torch.equal(z, (2 * x).sum(0))
    assert same is x
    assert five == 5


def test_an_interpreter_keeps_nothing_between_calls() -> None:
    run = Interpreter(TWICE)
    first = run(torch.ones(2, 3))[0]
    assert torch.equal(run(torch.zeros(2, 3))[0], torch.zeros(3))
    assert torch.equal(first, torch.full((3,), 4.0))


def test_values_get_the_stated_layout() -> None:
    graph = parse_graph("input %x: f32[2, 3]\n%y: f32[2, 3]{1, 2} = prims.clone(%x)\nreturn %y")
    (y,) = interpret(graph, [torch.randn(2, 3)])
    assert y.stride() == (1, 2)


def test_symbols_are_read_off_the_inputs() -> None:
    graph = parse_graph("""
        input %x: f32[s0, 3]
        %y: f32[2*s0, 3] = prims.cat([%x, %x], 0)
        return %y
    """)
    assert interpret(graph, [torch.randn(5, 3)])[0].shape == (10, 3)


@pytest.mark.parametrize(
    "inputs", [[], [torch.zeros(2, 4)], [torch.zeros(2, 3, dtype=torch.float64)], [torch.zeros(6)]], ids=str
)
def test_inputs_that_do_not_fit_are_refused(inputs: list[torch.Tensor]) -> None:
    with pytest.raises(InterpretFault):
        interpret(TWICE, inputs)


def test_a_result_of_another_type_is_refused() -> None:
    graph = parse_graph("input %x: f32[2]\n%y: f32[3] = prims.exp(%x)\nreturn %y")
    with pytest.raises(InterpretFault, match="the graph states"):
        interpret(graph, [torch.zeros(2)])


def test_unknown_prims_and_ops_are_refused() -> None:
    with pytest.raises(UnknownOp):
        interpret(parse_graph("input %x: f32[2]\n%y: f32[2] = prims.nothing(%x)\nreturn %y"), [torch.zeros(2)])
    with pytest.raises(InterpretFault, match="no operator"):
        interpret(parse_graph("input %x: f32[2]\n%y: f32[2] = aten.nothing.default(%x)\nreturn %y"), [torch.zeros(2)])


INDEXED = """
input %x: f32[3]
input %i: i64[1]
%y: f32[1] = prims.index(%x, [%i], WRAP)
%z: f32[3] = prims.index_put(%x, [%i], %y, False, WRAP)
return %y, %z
"""


@pytest.mark.parametrize(("wrap", "least"), [("True", -3), ("False", 0)])
def test_negative_indices_count_from_the_end_where_the_prim_says_so(wrap: str, least: int) -> None:
    run = Interpreter(parse_graph(INDEXED.replace("WRAP", wrap)))
    x = torch.arange(3.0)
    for inside in (least, 2):
        assert run(x, torch.tensor([inside]))[0].item() == x[inside].item()
    for outside in (least - 1, 3):
        with pytest.raises(IndexError):
            run(x, torch.tensor([outside]))


def test_a_value_out_of_range_is_an_error() -> None:
    run = Interpreter(parse_graph("input %x: f32[2]\n%y: f32[2] = prims.check_range(%x, 0.0, 1.0)\nreturn %y\n"))
    assert run(torch.tensor([0.0, 1.0]))[0].tolist() == [0.0, 1.0]
    for outside in (-0.5, 1.5, float("nan")):
        with pytest.raises(RuntimeError, match="out of the range"):
            run(torch.tensor([0.5, outside]))
