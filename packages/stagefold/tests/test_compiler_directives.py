"""Marks, stances and reset: the public names that steer compilation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import stagefold

X = torch.tensor([1.0, -2.0, 3.0])


def compiled(function: Callable[..., Any], **settings: Any) -> tuple[Callable[..., Any], list[list[str]]]:
    """The compiled function, and the operations of each graph that it makes."""
    graphs: list[list[str]] = []

    def backend(module: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append([str(node.target) for node in module.graph.nodes if node.op.startswith("call")])
        return module.forward

    return stagefold.compile(function, backend=backend, **settings), graphs


def same(function: Callable[..., Any], *args: Any) -> list[list[str]]:
    """Compare the compiled function with the plain one, twice; its graphs."""
    call, graphs = compiled(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            torch.testing.assert_close(call(*args), function(*args))
    return graphs


@stagefold.disable
def disabled(x):
    return x + int(stagefold.is_compiling())


@stagefold.disable(recursive=False, reason="to be watched")
def disabled_alone(x):
    return torch.relu(x) + 5


@stagefold.assume_constant
def constant(n):
    constant.calls += 1
    return n * 2


constant.calls = 0


class Thing:
    @stagefold.disable
    def method(self, x):
        return x + 1

    @staticmethod
    @stagefold.disable
    def static(x):
        return x + 2

    @classmethod
    @stagefold.disable
    def of_class(cls, x):
        return x + 3

    @stagefold.assume_constant
    def width(self):
        return 3


thing = Thing()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: disabled(x * 2) * 3,
        lambda x: disabled_alone(x * 2) * 3,
        lambda x: thing.method(x * 2) * 3,
        lambda x: thing.static(x * 2) * 3,
        lambda x: Thing.of_class(x * 2) * 3,
    ],
)
def test_disabled_calls_run_plain_between_two_graphs(function: Callable[..., Any]) -> None:
    assert same(function, X) == [["<built-in function mul>"]] * 2


@pytest.mark.parametrize("call", [disabled, thing.method, thing.static, Thing.of_class, disabled_alone])
def test_disabled_calls_are_errors_in_one_graph(call: Callable[..., Any]) -> None:
    def function(x):
        return call(x * 2)

    with pytest.raises(stagefold.StageError, match=r"BC031.*disabled"):
        stagefold.compile(function, fullgraph=True)(X)


def test_disabled_callables_keep_their_names() -> None:
    assert (disabled.__name__, disabled.__wrapped__.__name__) == ("disabled", "disabled")
    assert torch.equal(disabled(X), X)
    with pytest.raises(TypeError, match="callable"):
        stagefold.disable(3)


def test_a_disabled_compiled_function_is_plain() -> None:
    call, graphs = compiled(lambda x: x * 2)
    assert torch.equal(stagefold.disable(call)(X), X * 2)
    assert graphs == []


def test_a_disabled_module_is_the_module() -> None:
    model = nn.Linear(3, 3)
    plain = stagefold.disable(model)
    assert list(plain.state_dict()) == ["weight", "bias"]
    assert plain.weight is model.weight
    torch.testing.assert_close(plain(X), model(X))
    with pytest.raises(stagefold.StageError, match="BC031"):
        stagefold.compile(lambda x: plain(x) * 2, backend="eager", fullgraph=True)(X)
    same(lambda x: plain(x) * 2, X)


def test_a_disabled_class() -> None:
    @stagefold.disable
    class Scale(nn.Module):
        def forward(self, x):
            return x * 3

    scale = Scale()
    assert torch.equal(scale(X), X * 3)
    with pytest.raises(stagefold.StageError, match="BC031"):
        stagefold.compile(lambda x: scale(x), backend="eager", fullgraph=True)(X)


def test_graph_break() -> None:
    def function(x):
        y = x * 2
        stagefold.graph_break()
        return torch.relu(y) + 1

    assert len(same(function, X)) == 2
    with pytest.raises(stagefold.StageError, match="BC030"):
        stagefold.compile(function, backend="eager", fullgraph=True)(X)
    stagefold.graph_break()


def test_constants_are_asked_once() -> None:
    before = constant.calls
    call, graphs = compiled(lambda x: x * constant(3) + thing.width(), fullgraph=True)
    for _ in range(3):
        assert torch.equal(call(X), X * 6 + 3)
    assert constant.calls == before + 1
    assert len(graphs) == 1


def test_allow_in_graph_returns_what_it_is_given() -> None:
    def helper(x):
        return x * 2

    assert stagefold.allow_in_graph(helper) is helper
    assert stagefold.allow_in_graph([helper]) == [helper]
    call, graphs = compiled(lambda x: helper(x) + 1, fullgraph=True)
    assert torch.equal(call(X), X * 2 + 1)
    assert len(graphs) == 1


def test_is_compiling() -> None:
    def function(x):
        return x * 2 if stagefold.is_compiling() or torch.compiler.is_compiling() else x * 3

    assert torch.equal(compiled(function)[0](X), X * 2)
    assert torch.equal(function(X), X * 3)


def test_marks_of_torch_are_honoured() -> None:
    @torch.compiler.disable
    def plain(x):
        return x + 1

    @torch.compiler.assume_constant_result
    def number():
        return 4

    inner = torch.compile(lambda x: x + 3, backend="eager")
    assert len(same(lambda x: plain(x * 2) * 3, X)) == 2
    assert len(same(lambda x: x * number(), X)) == 1
    assert len(same(lambda x: inner(x * 2), X)) == 1
    with pytest.raises(stagefold.StageError, match="BC031"):
        stagefold.compile(lambda x: plain(x * 2), backend="eager", fullgraph=True)(X)
    with pytest.raises(stagefold.StageError, match="BC030"):
        stagefold.compile(lambda x: (x * 2, torch._dynamo.graph_break()), backend="eager", fullgraph=True)(X)


# ---- stances --------------------------------------------------------------------------------


def scaled(x, n):
    return x * n


def test_force_eager_ignores_compiled_versions() -> None:
    call = stagefold.compile(lambda x: x * 2, backend=lambda module, inputs: lambda *args: (args[0] * 100,))
    assert torch.equal(call(X), X * 100)
    with stagefold.set_stance("force_eager"):
        assert torch.equal(call(X), X * 2)
    assert torch.equal(call(X), X * 100)

    @stagefold.set_stance("force_eager")
    def plain():
        return call(X)

    assert torch.equal(plain(), X * 2)
    assert torch.equal(call(X), X * 100)
    stagefold.set_stance("force_eager")
    try:
        assert torch.equal(call(X), X * 2)
    finally:
        stagefold.set_stance("default")
    assert torch.equal(call(X), X * 100)


def test_eager_on_recompile_uses_what_fits() -> None:
    call, graphs = compiled(scaled)
    call(X, 2)
    with stagefold.set_stance("eager_on_recompile"):
        assert torch.equal(call(X, 2), X * 2)
        assert torch.equal(call(X, 3), X * 3)
    assert len(graphs) == 1
    call(X, 3)
    assert len(graphs) == 2


def test_fail_on_recompile_names_the_value() -> None:
    call, graphs = compiled(scaled)
    call(X, 2)
    with stagefold.set_stance("fail_on_recompile"):
        assert torch.equal(call(X, 2), X * 2)
        with pytest.raises(RuntimeError, match=r"BC032.*scaled has to be compiled: n was 2 and is 3"):
            call(X, 3)
    assert torch.equal(call(X, 3), X * 3)
    assert len(graphs) == 2


def test_eager_then_compile() -> None:
    call, graphs = compiled(scaled)
    with stagefold.set_stance("eager_then_compile"):
        counts = []
        for _ in range(3):
            assert torch.equal(call(X, 2), X * 2)
            counts.append(len(graphs))
    assert counts == [0, 1, 1]


def test_unknown_stances_are_refused() -> None:
    with pytest.raises(stagefold.StageError, match="force_eager"):
        stagefold.set_stance("lazy")


# ---- reset ----------------------------------------------------------------------------------


def test_reset_drops_versions_and_limits() -> None:
    call, graphs = compiled(scaled, fullgraph=True)
    call(X, 2)
    call(X, 2)
    stagefold.reset()
    call(X, 2)
    assert len(graphs) == 2
    for n in range(100, 120):
        if n % 5 == 0:
            stagefold.reset()
        assert torch.equal(call(X, n), X * n)
