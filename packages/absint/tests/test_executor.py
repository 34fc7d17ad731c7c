"""Graphs as callables that make their calls, one by one."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import pytest
import torch

from absint.errors import WrongResults
from absint.executor import executor
from absint.functions import function_of, run_graph, tensor_leaves
from absint.targets import resolve
from stagewire.expr import Expr
from stagewire.graph import Graph, List, Node, Ref, Slice, Tuple, Value
from stagewire.types import ScalarType, contiguous


def value(name: str, *shape: int | Expr) -> Value:
    return Value(name, contiguous("float32", shape or (3,)))


def made(graph: Graph, **options: Any) -> Any:
    return executor(graph, lambda node: function_of(node, {}), tensor_leaves, **options)


X, Y, Z = value("x"), value("y"), value("z")
DOUBLED = Graph(
    (X,),
    (Node("operator.mul", (Ref("x"), 2), {}, (Y,)), Node("torch.clamp", (Ref("y"),), {"max": 3.0}, (Z,))),
    (Ref("z"), Ref("y"), None, Tuple((Ref("z"), 1))),
)


def test_outputs_are_those_of_the_interpreter() -> None:
    x = torch.arange(3.0)
    found, expected = made(DOUBLED)(x), run_graph(DOUBLED, (x,), {})
    assert found[0].equal(expected[0])
    assert found[1].equal(expected[1])
    assert found[2:3] == expected[2:3] == (None,)
    assert (found[3][0] is found[0], found[3][1]) == (True, 1)


def test_a_list_of_inputs_is_emptied() -> None:
    given = [torch.arange(3.0)]
    assert made(DOUBLED)(given)[1].tolist() == [0, 2, 4]
    assert given == []


def test_a_graph_of_no_inputs() -> None:
    graph = Graph((), (Node("torch.zeros", (List((3,)),), {}, (Y,)),), (Ref("y"),))
    assert [run(*given)[0].tolist() for run in [made(graph)] for given in ((), ([],))] == [[0.0] * 3] * 2


def test_several_results_and_slices() -> None:
    split = Node("torch.split", (Ref("x"), List((1, 2))), {}, (value("a", 1), value("b", 2)))
    row = Node("torch.Tensor.__getitem__", (Ref("b"), Slice(1, None, None)), {}, (value("c", 1),))
    (found, last) = made(Graph((X,), (split, row), (Ref("a"), Ref("c"))))(torch.arange(3.0))
    assert (found.tolist(), last.tolist()) == ([0.0], [2.0])


def test_sizes_are_read_off_inputs_and_numbers_that_nodes_give() -> None:
    n = Expr("n")
    size = Node("torch.Tensor.size", (Ref("y"), 0), {}, (Value("m", ScalarType("int")),))
    twice = Node("torch.cat", (List((Ref("x"), Ref("x"))),), {}, (value("y", Expr("2*n")),))
    zeros = Node("torch.zeros", (List((n, Expr("m"))),), {}, (value("z", n, Expr("m")),))
    run = made(Graph((value("x", n),), (twice, size, zeros), (Ref("z"),)))
    assert [tuple(run(torch.ones(count))[0].shape) for count in (2, 5)] == [(2, 4), (5, 10)]


def test_values_are_dropped_behind_their_last_use() -> None:
    alive: list[bool] = []
    references: list[weakref.ref[torch.Tensor]] = []

    def calls(node: Node) -> Any:
        function = resolve(node.target)

        def call(*args: Any) -> Any:
            alive.append(any(reference() is not None for reference in references[:-1]))
            result = function(*args)
            references.append(weakref.ref(result))
            return result

        return call

    names = ["x", "a", "b", "c", "d"]
    nodes = [Node("operator.add", (Ref(before), 1), {}, (value(name),)) for before, name in itertools.pairwise(names)]
    executor(Graph((X,), tuple(nodes), (Ref("d"),)), calls, tensor_leaves)(torch.ones(3))
    assert alive == [False] * 4


def test_modes_are_put_back_where_a_call_raises() -> None:
    modes: list[Any] = []
    graph = Graph((X,), (Node("operator.matmul", (Ref("x"), 1), {}, (Y,)),), (Ref("y"),))
    with pytest.raises(TypeError):
        made(graph, modes=(lambda: "before", modes.append))(torch.ones(3))
    assert modes == ["before"]


def test_another_number_of_inputs_is_refused() -> None:
    def refuse(count: int) -> None:
        raise LookupError(count)

    with pytest.raises(LookupError, match="2"):
        made(DOUBLED, refuse=refuse)(torch.ones(3), torch.ones(3))


def test_another_number_of_results_is_an_error() -> None:
    graph = Graph((X,), (Node("torch.split", (Ref("x"), 1), {}, (Y, Z)),), (Ref("y"),))
    with pytest.raises(WrongResults, match="gave 3 results where the graph has 2"):
        made(graph)(torch.arange(3.0))
