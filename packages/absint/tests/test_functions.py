"""Custom functions of a Capture as callables."""

from __future__ import annotations

import pytest
import torch

from absint import AbstractMode, abstract_call
from absint.errors import UnknownTarget
from absint.functions import custom_functions, run_graph
from stagewire.capture import CustomFunction, Transform
from stagewire.graph import Graph, Node, Ref, Tuple, Value
from stagewire.types import contiguous


def value(name: str) -> Value:
    return Value(name, contiguous("float32", (2,)))


def call(target: str, result: str, *args: object) -> Node:
    return Node(target, args, {}, (value(result),))  # type: ignore[arg-type]


def scaled(**changes: object) -> CustomFunction:
    """x * s, with a gradient of five times s."""
    forward = Graph((value("x"), value("s")), (call("operator.mul", "y", Ref("x"), Ref("s")),), (Ref("y"), Ref("s")))
    five = call("operator.mul", "h", Ref("g"), 5)
    backward = Graph((value("g"), value("s")), (five, call("operator.mul", "k", Ref("h"), Ref("s"))), (Ref("k"),))
    fields: dict[str, object] = dict(
        name="scaled", operands=1, results=1, forward=forward, backward=backward, saved=1, **changes
    )
    return CustomFunction(**fields)  # type: ignore[arg-type]


def test_own_backward() -> None:
    (apply,) = custom_functions((scaled(),)).values()
    x, s = torch.ones(2, requires_grad=True), torch.tensor([2.0, 3.0], requires_grad=True)
    (y,) = apply(x, (s,))
    assert y.tolist() == [2.0, 3.0]
    to_x, to_s = torch.autograd.grad(y.sum(), (x, s), allow_unused=True, create_graph=True)
    assert to_x.tolist() == [10.0, 15.0]
    assert to_s is None  # captured tensors are out of the reach of gradients
    assert to_x.requires_grad


def test_once() -> None:
    (apply,) = custom_functions((scaled(once=True),)).values()
    x = torch.ones(2, requires_grad=True)
    (y,) = apply(x, (torch.ones(2),))
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(gradient.sum(), x)


def test_marks() -> None:
    (apply,) = custom_functions((scaled(non_differentiable=(0,)),)).values()
    (y,) = apply(torch.ones(2, requires_grad=True), (torch.ones(2),))
    assert not y.requires_grad


def test_functions_in_graphs() -> None:
    functions = custom_functions((scaled(),))
    graph = Graph((value("a"),), (call("custom.scaled", "b", Ref("a"), Tuple((Ref("a"),))),), (Ref("b"), None))
    (b, nothing) = run_graph(graph, (torch.tensor([2.0, 3.0]),), functions)
    assert b.tolist() == [4.0, 9.0]
    assert nothing is None
    with pytest.raises(UnknownTarget, match="it has none"):
        run_graph(graph, (torch.ones(2),), {})


def test_dual_levels() -> None:
    """Abstract tensors have tangents, those of products with Python numbers too."""
    nodes = (
        call("torch.autograd.forward_ad.make_dual", "d", Ref("x"), Ref("t")),
        call("operator.mul", "y", Ref("d"), 3),
        Node("torch.autograd.forward_ad.unpack_dual", (Ref("y"),), {}, (value("primal"), value("tangent"))),
    )
    graph = Graph((value("x"), value("t")), nodes, (Ref("primal"), Ref("tangent")))
    transform = Transform(kind="dual_level", arguments=0, outputs=2)
    function = CustomFunction(name="level", operands=0, results=2, forward=graph, transform=transform)
    (apply,) = custom_functions((function,)).values()
    x, t = torch.tensor([2.0, 3.0]), torch.tensor([1.0, 5.0], requires_grad=True)
    primal, tangent = apply((x, t))
    assert primal.tolist() == [6.0, 9.0]
    assert torch.autograd.grad(tangent.sum(), t)[0].tolist() == [3.0, 3.0]
    mode = AbstractMode()
    found = abstract_call(apply, ((mode.lift(x), mode.lift(t.detach())),), mode=mode)
    assert [(each.shape, each.dtype) for each in found] == [(x.shape, x.dtype)] * 2
