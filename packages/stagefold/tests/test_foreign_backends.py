"""Back ends written for torch.compile run behind our capture: each in a style that such back ends have."""

from __future__ import annotations

import copy
import io
import operator
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx
from torch import nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.utils.checkpoint import checkpoint

import stagefold
from stagefold.errors import BadBackend, BadOption, FixedSizes, UnknownBackend

Inputs = list[torch.Tensor]


class Model(nn.Module):
    """Methods, attributes, views, in-place writes, several results, buffers, a nested output.

    No item assignment, no += and no grad mode: those survive neither pickling nor symbolic tracing of a GraphModule.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.tail = nn.Sequential(nn.ReLU(), nn.Linear(6, 4))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, scale: dict[str, torch.Tensor]) -> dict[str, Any]:
        first, second = x.chunk(2, 0)
        hidden = self.norm(self.linear(torch.cat([first, second * scale["by"]], dim=0)))
        self.calls.add_(1)
        hidden = hidden.clone()
        hidden[:, 1:3].fill_(0.5)
        values, _ = torch.max(hidden, dim=1)
        frozen = hidden.detach().mT.T + 1
        return {"out": self.tail(hidden).view(-1, 2, 2), "values": values, "pair": (frozen, x.shape[0])}


def compared(backend: Any, **settings: Any) -> None:
    """Two training steps and one without gradients, against eager: outputs, gradients, buffers."""
    torch.manual_seed(0)
    eager = Model()
    ours = copy.deepcopy(eager)
    compiled = stagefold.compile(ours, backend=backend, fullgraph=True, **settings)
    for train in (True, True, False):
        results = []
        batch = torch.randn(4, 4)
        for model, call in ((eager, eager), (ours, compiled)):
            model.zero_grad()
            x, by = batch.clone().requires_grad_(train), torch.full((2, 4), 0.5)
            with torch.set_grad_enabled(train):
                made = call(x, {"by": by})
                if train:
                    (made["out"].sum() + made["values"].prod()).backward()
            results.append(
                [made["out"], made["values"], made["pair"][0], x.grad, *[p.grad for p in model.parameters()]]
            )
            assert made["pair"][1] == 4
            assert not made["pair"][0].requires_grad
        for want, have in zip(*results, strict=True):
            torch.testing.assert_close(have, want)
        for want, have in zip(eager.buffers(), ours.buffers(), strict=True):
            torch.testing.assert_close(have, want)


def returns_the_module(module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
    return module


def returns_forward(module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
    assert module.print_readable(print_output=False)
    module.recompile()
    return module.forward


def returns_a_list(module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
    return lambda *args: list(module(*args))


def interprets(module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
    return torch.fx.Interpreter(module).run


def transforms(module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
    return torch.fx.Transformer(module).transform()


def deep_copies(module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
    return copy.deepcopy(module)


def pickles(module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
    return pickle.load(io.BytesIO(pickle.dumps(module)))


def traces_again(module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
    return torch.fx.symbolic_trace(module)


def propagates_shapes(module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
    """On clones: shapes come from a run, and running writes buffers."""
    ShapeProp(module).propagate(*[tensor.detach().clone() for tensor in inputs])
    assert all("tensor_meta" in node.meta for node in module.graph.nodes if node.op == "placeholder")
    return module


def reads_metadata(module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
    """What third-party back ends read off nodes: example values, stack traces, types of placeholders."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, tensor in zip(placeholders, inputs, strict=True):
        value = node.meta["example_value"]
        assert (value.shape, value.stride(), value.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
        assert node.type is type(tensor)
    calls = [node for node in module.graph.nodes if node.op.startswith("call_")]
    tensors = [node for node in calls if isinstance(node.meta.get("example_value"), torch.Tensor)]
    assert len(tensors) > len(calls) // 2
    assert all("in Model.forward" in node.stack_trace for node in calls)
    assert any("linear_parameters_weight" in node.name for node in placeholders)
    return module


def rewrites(module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
    """Functions become methods and methods functions; the graph is linted and made again."""
    swapped = 0
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is operator.add:
            node.target = torch.add
            swapped += 1
        elif node.op == "call_method" and node.target == "view":
            with module.graph.inserting_before(node):
                new = module.graph.call_function(torch.reshape, (node.args[0], node.args[1:]))
            node.replace_all_uses_with(new)
            module.graph.erase_node(node)
            swapped += 1
    assert swapped
    module.graph.lint()
    module.recompile()
    return module.forward


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "backend",
    [returns_the_module, returns_forward, returns_a_list, interprets, transforms, deep_copies, pickles, traces_again,
     propagates_shapes, reads_metadata, rewrites],
)  # fmt: skip
def test_a_back_end_over_the_graph(backend: Callable[..., Any]) -> None:
    compared(backend)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["aot_eager", "aot_eager_decomp_partition"])
def test_a_back_end_that_torch_registers(name: str) -> None:
    compared(name)


@pytest.mark.filterwarnings("ignore")
def test_a_back_end_made_with_aot_autograd() -> None:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs: list[torch.fx.GraphModule] = []

    def compiler(module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
        graphs.append(module)
        return make_boxed_func(module.forward)

    compared(aot_autograd(fw_compiler=compiler))
    assert len(graphs) >= 3
    assert all(any(str(node.target).startswith("aten.") for node in graph.graph.nodes) for graph in graphs)


@pytest.mark.filterwarnings("ignore")
def test_the_same_graph_as_torch_compile_gives() -> None:
    """Kinds, targets, order and metadata of the nodes; names of intermediate values may differ."""

    def f(model: Model, x: torch.Tensor) -> tuple[Any, ...]:
        made = model(x, {"by": torch.ones(2, 4)})
        made["out"][0, :, 1] = made["values"][:2]
        model.calls += 1
        with torch.no_grad():
            return made, ~(made["out"] > 0) | (x.sum() == 0), -x @ x.T, x.size(0) * 2, x.sort(dim=1, descending=True)

    def seen_by(entry: Callable[..., Any]) -> list[tuple[Any, ...]]:
        seen: list[tuple[Any, ...]] = []

        def backend(module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
            assert type(inputs) is list
            for node in module.graph.nodes:
                value = node.meta.get("example_value")
                kind = (type(value).__name__, tuple(value.shape)) if isinstance(value, torch.Tensor) else None
                target = "" if node.op == "placeholder" else node.target
                # Before 2.13 torch.compile writes == as a call of its method.
                op, target = ("call_function", operator.eq) if target == "__eq__" else (node.op, target)
                seen.append((op, target, len(node.args), sorted(node.kwargs), kind, node.type))
            return module.forward

        torch.manual_seed(0)
        entry(f, backend=backend)(Model(), torch.randn(4, 4))
        return seen

    assert seen_by(stagefold.compile) == seen_by(torch.compile)


def test_mode_and_options_reach_the_back_end() -> None:
    given: list[dict[str, Any]] = []

    def backend(module: torch.fx.GraphModule, inputs: Inputs, **settings: Any) -> Callable[..., Any]:
        given.append(settings)
        return module

    for settings in ({}, {"mode": "default"}, {"mode": "quick"}, {"options": {"depth": 3}}):
        stagefold.compile(lambda x: x + 1, backend=backend, **settings)(torch.ones(2))
    assert given == [{}, {}, {"mode": "quick"}, {"options": {"depth": 3}}]
    with pytest.raises(BadOption):
        stagefold.compile(lambda x: x + 1, backend="eager", options={"depth": 3})


def test_a_name_of_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torch_dynamo_backends]\nthird_party = third_party_backend:compile_fx\n")
    (tmp_path / "third_party_backend.py").write_text(
        "calls = []\ndef compile_fx(module, inputs):\n    calls.append(len(inputs))\n    return module.forward\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert stagefold.compile(lambda x, y: x + y, backend="third_party")(torch.ones(1), torch.ones(1)).item() == 2
    assert sys.modules["third_party_backend"].calls == [2]
    monkeypatch.delitem(sys.modules, "third_party_backend")


def test_names() -> None:
    assert {"stagefold", "eager", "inductor", "cudagraphs"} <= set(stagefold.list_backends())
    assert "aot_eager" in stagefold.list_backends(exclude_tags=())
    with pytest.raises(UnknownBackend, match="nothing_like_it"):
        stagefold.compile(lambda x: x, backend="nothing_like_it")


def test_a_back_end_that_returns_nothing_is_told() -> None:
    with pytest.raises(BadBackend, match="returned a NoneType"):
        stagefold.compile(lambda x: x + 1, backend=lambda module, inputs: None)(torch.ones(1))


def test_errors_of_a_back_end_are_raised() -> None:
    def backend(module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
        raise KeyError("no kernel")

    with pytest.raises(KeyError, match="no kernel"):
        stagefold.compile(lambda x: x + 1, backend=backend)(torch.ones(1))


def test_operators_without_a_fake_kernel() -> None:
    """The graph is still handed over; the values of such calls are known by their types."""
    with torch.library._scoped_library("stagefold_tests", "FRAGMENT") as library:
        library.define("pair(Tensor x) -> (Tensor, Tensor)")
        library.impl("pair", lambda x: (x + 1, x * 2), "CPU")
        seen: list[Any] = []

        def backend(module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
            seen.extend(node.meta.get("example_value") for node in module.graph.nodes)
            return module

        def f(x: torch.Tensor) -> torch.Tensor:
            a, b = torch.ops.stagefold_tests.pair.default(x)
            return a * b

        compiled = stagefold.compile(f, backend=backend, fullgraph=True)
        torch.testing.assert_close(compiled(torch.arange(3.0)), f(torch.arange(3.0)))
        assert sum(isinstance(value, torch.Tensor) and value.shape == (3,) for value in seen) == 4


class Sized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor, n: int) -> Any:
        y = self.inner(x).reshape(x.shape[0], -1) * n
        if x.shape[0] % 2 == 0:
            y = y + 1
        return y.softmax(-1), x[1:-1], x.new_zeros(x.shape[0] // 2, n), x.shape[0] * 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", [returns_the_module, interprets, deep_copies, "aot_eager", "inductor"])
def test_symbolic_sizes_reach_the_back_end(backend: Any, dynamic: bool | None) -> None:
    """Training at seven sizes, against eager; what a back end assumes of a size is guarded."""
    compiled_for: list[list[str]] = []

    def counted(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        compiled_for.append([type(one).__name__ for one in inputs[:2]])
        return backend(module, inputs)

    torch.manual_seed(0)
    eager = Sized()
    ours = copy.deepcopy(eager)
    compiled = stagefold.compile(ours, backend=counted if callable(backend) else backend, dynamic=dynamic)
    for size, n in ((4, 3), (6, 5), (8, 6), (12, 2), (10, 9), (16, 7), (14, 4)):
        x = torch.randn(size, 8)
        want, have = eager(x, n), compiled(x, n)
        torch.testing.assert_close(have, want)
        for made in (want, have):
            made[0].square().sum().backward()
    for expected, parameter in zip(eager.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)
    if callable(backend):
        assert compiled_for[-1][0] == "SymInt"
        assert len(compiled_for) <= 2


@pytest.mark.filterwarnings("ignore")
def test_what_a_back_end_asks_of_a_size_is_guarded() -> None:
    seen: list[Any] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        size = inputs[0]
        seen.append(size if type(size) is torch.SymInt and size % 4 == 0 else None)
        return (lambda *inputs: (inputs[1] * 4,)) if seen[-1] is not None else module.forward

    compiled = stagefold.compile(lambda x: x + x.shape[0], backend=backend, dynamic=True)
    assert compiled(torch.ones(8)).tolist() == [4.0] * 8  # (wrong on purpose: the form for multiples of 4)
    assert compiled(torch.ones(12)).tolist() == [4.0] * 12
    assert len(seen) == 1
    assert compiled(torch.ones(6)).tolist() == [7.0] * 6
    assert compiled(torch.ones(7)).tolist() == [8.0] * 7


def test_a_back_end_that_fails_with_symbols_gets_sizes() -> None:
    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        if any(isinstance(one, torch.SymInt) for one in inputs):
            raise TypeError("sizes are ints")
        return module.forward

    compiled = stagefold.compile(lambda x: x * 2, backend=backend)
    assert compiled(torch.ones(2)).tolist() == [2.0] * 2
    with pytest.warns(FixedSizes, match="sizes are ints"):
        assert compiled(torch.ones(3)).tolist() == [2.0] * 3


@pytest.mark.parametrize("backend", ["stagefold", "eager", "aot_eager"])
def test_a_compiled_model_within_a_checkpoint(backend: str) -> None:
    """The checkpoint's hooks see what the call saves, not what is compiled, and end its recomputation by an error."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Tanh())
    gradients = []
    for call in (model, stagefold.compile(model, backend=backend)):
        torch.manual_seed(0)
        x = torch.ones(2, 3, requires_grad=True)
        checkpoint(call, x, use_reentrant=False).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
