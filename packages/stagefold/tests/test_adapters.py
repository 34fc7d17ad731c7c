"""Between Capture and torch.fx, both ways; our back end behind torch's capture."""

from __future__ import annotations

import pytest
import torch
import torch.fx

import stagefold
from aotgrad import AotGrad, PartitionStage
from stagefold.adapters.from_fx import UnsupportedGraphModule, from_fx
from stagefold.adapters.fx import to_fx
from stagefold.adapters.graph_calls import flatten_tensors
from stagewire.capture import Capture, Code, CustomFunction, Input, Local
from stagewire.graph import Graph, Node, Ref, Tuple, Value
from stagewire.prim import Prim
from stagewire.types import TensorType, contiguous


def split_capture() -> Capture:
    """f(x) = b + a for a, b = split(x, 2): a node with two results."""
    x = Value("x", contiguous("float32", (4,)))
    a = Value("a", TensorType("float32", (2,), (1,)))
    b = Value("b", TensorType("float32", (2,), (1,), 2))
    c = Value("c", contiguous("float32", (2,)))
    nodes = (
        Node("torch.split", (Ref("x"), 2), {}, (a, b)),
        Node("operator.add", (Ref("b"), Ref("a")), {}, (c,)),
    )
    graph = Graph((x,), nodes, (Ref("c"), Ref("a")))
    return Capture(code=Code("f", "a.py", 1), inputs=(Input(x, Local("x")),), graph=graph)


def test_to_fx_means_the_same() -> None:
    module = to_fx(split_capture())
    x = torch.arange(4.0)
    c, a = module(x)
    assert c.tolist() == [2.0, 4.0]
    assert a.tolist() == [0.0, 1.0]


def test_custom_function_in_fx() -> None:
    x, y, g = (Value(name, contiguous("float32", (2,))) for name in "xyg")
    forward = Graph((x,), (Node("operator.mul", (Ref("x"), 2), {}, (y,)),), (Ref("y"),))
    gradient = Value("h", contiguous("float32", (2,)))
    backward = Graph((g,), (Node("operator.mul", (Ref("g"), 5), {}, (gradient,)),), (Ref("h"),))
    function = CustomFunction(name="double", operands=1, results=1, forward=forward, backward=backward)
    graph = Graph((x,), (Node("custom.double", (Ref("x"), Tuple(())), {}, (y,)),), (Ref("y"),))
    capture = Capture(code=Code("f", "a.py", 1), inputs=(Input(x, Local("x")),), graph=graph, functions=(function,))
    operand = torch.ones(2, requires_grad=True)
    (result,) = to_fx(capture)(operand)
    result.sum().backward()
    assert result.tolist() == [2.0, 2.0]
    assert operand.grad is not None
    assert operand.grad.tolist() == [5.0, 5.0]


def test_from_fx_of_to_fx_is_the_same_program() -> None:
    module = to_fx(split_capture())
    x = torch.arange(4.0)
    for node, value in zip(module.graph.nodes, _values(module, x), strict=True):
        node.meta["example_value"] = value
    capture, constants = from_fx(module, [x])
    assert constants == ()
    again = to_fx(capture)
    for want, have in zip(module(x), again(x), strict=True):
        assert torch.equal(want, have)


def _values(module: torch.fx.GraphModule, x: torch.Tensor) -> list[object]:
    seen: list[object] = []

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> object:
            seen.append(super().run_node(n))
            return seen[-1]

    Recorder(module).run(x)
    return seen


def test_inputs_of_unknown_type_are_refused() -> None:
    module = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(UnsupportedGraphModule, match="carries no example value"):
        from_fx(module)
    with pytest.raises(UnsupportedGraphModule, match="1 inputs, and 2 are given"):
        from_fx(module, [torch.ones(2), torch.ones(2)])


def test_flatten_tensors_takes_tensors_in_order() -> None:
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    assert [t.numel() for t in flatten_tensors((a, [3, b], {"k": c}))] == [1, 2, 3]


def test_to_fx_of_both_directions() -> None:
    """A Grad has the forward's and the backward's results; a part that is cut off is a graph of its own."""
    module = torch.fx.symbolic_trace(torch.nn.Linear(3, 2))
    capture, held = stagefold.from_fx(module, [torch.ones(4, 3)])
    grad = AotGrad().run(capture)
    x, tangent = torch.randn(4, 3), torch.randn(4, 2)
    forward, *gradients = to_fx(grad)(x, *held, tangent)
    expected = torch.nn.functional.linear(x, *held)
    torch.testing.assert_close(forward, expected)
    for have, want in zip(gradients[-2:], torch.autograd.grad(expected, held, tangent), strict=True):
        torch.testing.assert_close(have, want)
    cut = PartitionStage().run(Prim(binding=grad.binding, joint=grad.joint))
    assert cut.forward is not None
    torch.testing.assert_close(to_fx(cut.forward)(x, *held)[0], expected)
