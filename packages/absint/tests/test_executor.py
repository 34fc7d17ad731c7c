"""Graphs run node by node."""

from __future__ import annotations

import weakref

import pytest
import torch

from absint.errors import WrongResults
from absint.executor import Interpreter
from stagewire.graph import Node
from stagewire.parser import parse_graph

CHAIN = parse_graph("""
input %x: f32[n, 3]
%a: f32[n, 3] = aten.add.Tensor(%x, %x)
%b: f32[n, 3] = aten.mul.Tensor(%a, %x)
return %b, 7
""")


def test_the_outputs_are_what_aten_computes() -> None:
    x = torch.randn(4, 3)
    b, seven = Interpreter(CHAIN)(x)
    assert torch.equal(b, (x + x) * x)
    assert seven == 7


def test_sizes_are_those_of_the_inputs() -> None:
    graph = parse_graph("input %x: f32[n]\n%y: f32[n + 1] = aten.full.default([n + 1], 2.0)\nreturn %y")
    assert Interpreter(graph)(torch.zeros(4))[0].tolist() == [2.0] * 5


def test_several_results_and_views_of_a_list() -> None:
    graph = parse_graph("""
        input %x: f32[4]
        %a: f32[2], %b: f32[2] = aten.split.Tensor(%x, 2)
        %c: f32[4] = aten.cat.default([%b, %a])
        return %c
    """)
    assert Interpreter(graph)(torch.arange(4.0))[0].tolist() == [2.0, 3.0, 0.0, 1.0]


class Watching(Interpreter):
    """Notes which values are alive when a node begins."""

    def __init__(self, graph):
        self.made: list[weakref.ref[torch.Tensor]] = []
        self.alive: list[int] = []
        super().__init__(graph)

    def function(self, node: Node):
        function = super().function(node)

        def call(*args, **kwargs):
            self.alive.append(sum(one() is not None for one in self.made))
            result = function(*args, **kwargs)
            self.made.append(weakref.ref(result))
            return result

        return call


def test_a_value_goes_after_its_last_use() -> None:
    graph = parse_graph("""
        input %x: f32[4]
        %a: f32[4] = aten.exp.default(%x)
        %b: f32[4] = aten.exp.default(%a)
        %c: f32[4] = aten.exp.default(%b)
        return %c
    """)
    run = Watching(graph)
    run(torch.zeros(4))
    assert run.alive == [0, 1, 1]


def test_a_list_of_inputs_is_emptied_and_they_go_too() -> None:
    given = [torch.zeros(4, 3)]
    seen = weakref.ref(given[0])
    outputs = Interpreter(parse_graph("input %x: f32[4, 3]\n%y: f32[4, 3] = aten.exp.default(%x)\nreturn %y"))(given)
    assert given == []
    assert seen() is None
    assert outputs[0].shape == (4, 3)


def test_another_number_of_results_is_refused() -> None:
    graph = parse_graph("input %x: f32[4]\n%a: f32[2] = aten.split.Tensor(%x, 2)\nreturn %a")
    with pytest.raises(WrongResults, match="gave 2 results instead of 1"):
        Interpreter(graph)(torch.zeros(4))
