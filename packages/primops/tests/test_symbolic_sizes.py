"""Decompositions of calls with symbolic sizes: right where they can be written, declined where a size decides."""

from __future__ import annotations

import pytest
import torch

from absint.targets import find
from primops import interpret, lower_graph
from stagewire.expr import Expr, evaluate, symbol
from stagewire.graph import Graph, List, Node, Ref, Value
from stagewire.parser import parse_graph
from stagewire.types import ScalarType, TensorType, contiguous

N = symbol("n")


def lowered(target: str, args: tuple[object, ...], result: TensorType, *inputs: Value) -> Graph:
    node = Node(target, args, {}, (Value("out", result),))  # type: ignore[arg-type]
    return lower_graph(Graph(inputs, (node,), (Ref("out"),)), strict=frozenset())


def test_a_size_is_an_operand() -> None:
    x = Value("x", contiguous("float32", (N, 3)))
    graph = lowered("aten.mul.Tensor", (Ref("x"), N), x.type, x)
    assert [node.target for node in graph.nodes] == ["prims.mul"]
    for size in (2, 5):
        given = torch.randn(size, 3)
        assert torch.equal(interpret(graph, (given,))[0], given * size)


X = Ref("x")


@pytest.mark.parametrize(
    ("target", "args"),
    [
        ("add.Tensor", (X, X)), ("sub.Tensor", (X, X)), ("rsub.Tensor", (X, X)), ("leaky_relu.default", (X, N)),
        ("elu.default", (X, N)), ("celu.default", (X, N)), ("softplus.default", (X, N, N)),
        ("threshold.default", (X, N, N)), ("hardtanh.default", (X, -N, N)), ("softshrink.default", (X, N)),
        ("hardshrink.default", (X, N)), ("leaky_relu_backward.default", (X, X, N, False)),
        ("softplus_backward.default", (X, X, N, N)), ("hardtanh_backward.default", (X, X, -N, N)),
        ("elu_backward.default", (X, N, 1, 1, False, X)), ("softshrink_backward.default", (X, X, N)),
    ],
)  # fmt: skip
def test_a_size_is_a_parameter(target: str, args: tuple[object, ...]) -> None:
    x, kwargs = Value("x", contiguous("float32", (N, 3))), {"alpha": N} if args == (X, X) else {}
    node = Node(f"aten.{target}", args, kwargs, (Value("out", x.type),))  # type: ignore[arg-type]
    graph = lower_graph(Graph((x,), (node,), (Ref("out"),)), strict=frozenset())
    assert all(node.target.startswith("prims.") for node in graph.nodes)
    overload = find(f"aten.{target}")
    for size in (2, 5):
        given = torch.randn(size, 3) * 4
        real = [given if arg is X else evaluate(arg, {"n": size}) if isinstance(arg, Expr) else arg for arg in args]
        expected = overload(*real, **dict.fromkeys(kwargs, size))
        torch.testing.assert_close(interpret(graph, (given,))[0], expected)


def test_a_symbol_that_is_given_as_a_number() -> None:
    n, x = Value("n", ScalarType("int")), Value("x", contiguous("float32", (3,)))
    graph = lowered("aten.new_full.default", (Ref("x"), List((N,)), N), contiguous("float32", (N,)), n, x)
    assert torch.equal(interpret(graph, (4, torch.ones(3)))[0], torch.full((4,), 4.0))


def test_halves_of_an_even_size() -> None:
    x = Value("x", contiguous("float32", (N, 3)))
    graph = lowered("aten.glu.default", (Ref("x"), 0), contiguous("float32", (N // 2, 3)), x)
    assert "prims.sigmoid" in [node.target for node in graph.nodes]
    for size in (2, 6):
        given = torch.randn(size, 3)
        torch.testing.assert_close(interpret(graph, (given,))[0], torch.nn.functional.glu(given, 0))


def test_steps_through_a_size_that_is_known_to_be_even() -> None:
    """The stated size is that of the other half: n // 2 where (n + 1) // 2 is computed."""
    x, half = Value("x", contiguous("float32", (3, N))), TensorType("float32", (3, N // 2), (N, 2))
    for start in (0, 1):
        graph = lowered("aten.slice.Tensor", (Ref("x"), 1, start, N, 2), half, x)
        assert [node.target for node in graph.nodes] == ["prims.slice"]
        part = Value("part", contiguous("float32", (3, N // 2)))
        args = (Ref("x"), Ref("part"), 1, start, N, 2)
        written = lowered("aten.slice_scatter.default", args, x.type, x, part)
        assert "prims.slice_scatter" in [node.target for node in written.nodes]
        for size in (2, 6):
            given, source = torch.randn(3, size), torch.randn(3, size // 2)
            assert torch.equal(interpret(graph, (given,))[0], given[:, start::2])
            expected = given.slice_scatter(source, 1, start, size, 2)
            assert torch.equal(interpret(written, (given, source))[0], expected)


def test_elements_that_repeat_a_known_number_of_times() -> None:
    x = Value("x", contiguous("float32", (2, 3, N // 2, N)))
    out = contiguous("float32", (2, 3, N // 2 * 2, N * 3))
    args = (Ref("x"), List(out.shape[2:]), 2.0, None)
    graph = lowered("aten.upsample_nearest2d.default", args, out, x)
    assert "aten.upsample_nearest2d.default" not in [node.target for node in graph.nodes]
    grad = Value("grad", out)
    args = (Ref("grad"), List(out.shape[2:]), List(x.type.shape), 2.0, None)
    n = Value("n", ScalarType("int"))
    backward = lowered("aten.upsample_nearest2d_backward.default", args, x.type, n, grad)
    assert "prims.sum" in [node.target for node in backward.nodes]
    for size in (2, 5):
        given = torch.randn(2, 3, size // 2, size, requires_grad=True)
        expected = torch.ops.aten.upsample_nearest2d(given, [size // 2 * 2, size * 3], 2.0, None)
        assert torch.equal(interpret(graph, (given.detach(),))[0], expected)
        tangent = torch.randn_like(expected)
        (wanted,) = torch.autograd.grad(expected, given, tangent)
        torch.testing.assert_close(interpret(backward, (size, tangent))[0], wanted)


def test_a_scale_that_is_given_says_where_to_read() -> None:
    x = Value("x", contiguous("float32", (2, 3, N, N)))
    out = contiguous("float32", (2, 3, N * 2 + 1, N + 3))
    calls = {"nearest2d": (), "bilinear2d": (False,), "bicubic2d": (False,)}
    for name, more in calls.items():
        target, scales = f"aten.upsample_{name}.default", (*more, 1.5, 0.7)
        graph = lowered(target, (Ref("x"), List(out.shape[2:]), *scales), out, x)
        assert target not in [node.target for node in graph.nodes]
        for size in (2, 5, 9):
            given = torch.randn(2, 3, size, size)
            expected = getattr(torch.ops.aten, f"upsample_{name}")(given, [size * 2 + 1, size + 3], *scales)
            torch.testing.assert_close(interpret(graph, (given,))[0], expected)


def test_sizes_of_another_ratio_stay_with_aten() -> None:
    x = Value("x", contiguous("float32", (2, 3, N, N)))
    out = contiguous("float32", (2, 3, N * 2, N + 1))
    graph = lowered("aten.upsample_nearest2d.default", (Ref("x"), List(out.shape[2:]), None, None), out, x)
    assert [node.target for node in graph.nodes] == ["aten.upsample_nearest2d.default"]


def test_a_width_that_may_be_negative_stays_with_aten() -> None:
    x = Value("x", contiguous("float32", (3, N)))
    graph = lowered("aten.constant_pad_nd.default", (Ref("x"), List((0, 5 - N))), contiguous("float32", (3, 5)), x)
    assert [node.target for node in graph.nodes] == ["aten.constant_pad_nd.default"]
    for size in (3, 5, 8):
        given = torch.randn(3, size)
        expected = torch.nn.functional.pad(given, (0, 5 - size))
        assert torch.equal(interpret(graph, (given,))[0], expected)


def test_sizes_that_may_differ_are_not_broadcast() -> None:
    x, y = Value("x", contiguous("float32", (N,))), Value("y", contiguous("float32", (symbol("m"),)))
    graph = lowered("aten.add.Tensor", (Ref("x"), Ref("y")), x.type, x, y)
    assert [node.target for node in graph.nodes] == ["aten.add.Tensor"]


@pytest.mark.parametrize("call", ["pow.Tensor_Scalar(%x, n)", "_foreach_pow.Scalar([%x], n)"])
def test_a_symbolic_exponent_stays_with_aten(call: str) -> None:
    graph = lower_graph(parse_graph(f"input %x: f32[n]\n%y: f32[n] = aten.{call}\nreturn %y"))
    assert [node.target for node in graph.nodes] == [f"aten.{call.partition('(')[0]}"]
