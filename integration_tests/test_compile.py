"""compile(): the faces of torch.compile, used as its users use it."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import stagefold
from stagefold.errors import BadModel, BadOption, UnknownBackend


def double(x: torch.Tensor) -> torch.Tensor:
    """Twice x."""
    return x * 2


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale


def test_as_function_decorator_and_decorator_with_arguments() -> None:
    x = torch.randn(4)
    first = stagefold.compile(double)
    assert first.__name__ == "double"
    assert first.__doc__ == "Twice x."

    @stagefold.compile
    def second(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @stagefold.compile(fullgraph=True)
    def third(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    for function in (first, second, third):
        torch.testing.assert_close(function(x), x * 2)


def test_on_a_bound_method() -> None:
    model, x = Counter(), torch.randn(3)
    torch.testing.assert_close(stagefold.compile(model.method, fullgraph=True)(x), x + 2.0)


def test_a_compiled_module_is_the_module_but_for_its_call() -> None:
    model = Counter()
    compiled = stagefold.compile(model, fullgraph=True)
    assert isinstance(compiled, nn.Module)
    assert list(compiled.state_dict()) == ["linear.weight", "linear.bias"]
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in model.parameters()]
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(x), model(x))
    compiled.scale = 5.0
    assert model.scale == 5.0
    torch.testing.assert_close(compiled(x), model.linear(x) * 5.0)
    assert compiled.eval() is compiled
    assert not model.training
    compiled.load_state_dict({k: torch.zeros_like(v) for k, v in model.state_dict().items()})
    assert torch.count_nonzero(compiled(x)) == 0
    assert compiled._orig_mod is model


def test_a_compiled_module_copies_and_pickles() -> None:
    compiled = stagefold.compile(Counter(), fullgraph=True)
    x = torch.randn(2, 3)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        torch.testing.assert_close(other(x), compiled(x))
        with torch.no_grad():
            other.linear.weight.zero_()
            other.linear.bias.zero_()
        assert torch.count_nonzero(other(x)) == 0
        assert torch.count_nonzero(compiled(x)) > 0


def test_disable_returns_the_model() -> None:
    assert stagefold.compile(double, disable=True) is double


def test_backend_eager_and_callable() -> None:
    x, seen = torch.randn(3), []

    def backend(module: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> object:
        seen.append([node.target for node in module.graph.nodes if node.op == "call_function"])
        return module.forward

    def f(x: torch.Tensor) -> torch.Tensor:
        a, b = torch.split(torch.relu(x), [1, 2])
        return torch.cat([b, a]) + 1

    torch.testing.assert_close(stagefold.compile(f, backend="eager", fullgraph=True)(x), f(x))
    torch.testing.assert_close(stagefold.compile(f, backend=backend, fullgraph=True)(x), f(x))
    assert len(seen) == 1
    assert torch.relu in seen[0]


def test_bad_arguments_are_coded_errors(tmp_path: Path) -> None:
    with pytest.raises(UnknownBackend, match="SF002"):
        stagefold.compile(double, backend="inductr")
    with pytest.raises(BadOption, match="Did you mean 'cache_dir'"):
        stagefold.compile(double, options={"cache_dri": "x"})
    with pytest.raises(BadOption, match="must be bool"):
        stagefold.compile(double, options={"cache": 1})
    with pytest.raises(BadOption, match="both given"):
        stagefold.compile(double, mode="default", options={})
    with pytest.raises(BadOption, match="unknown mode"):
        stagefold.compile(double, mode="fastest")
    with pytest.raises(BadModel, match="SF005"):
        stagefold.compile(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(0, 4),
        torch.randn(()),
        torch.randn(4, 6).t(),
        torch.randn(3, 1).expand(3, 5),
        torch.randn(8)[::2],
        torch.arange(6),
        torch.tensor([True, False]),
        torch.randn(3, 4).to(torch.bfloat16),
        torch.randn(3, 4).half(),
        torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0]),
        torch.randn(3, dtype=torch.complex64),
        torch.randn(3, dtype=torch.float64),
        torch.randn(1, 1, 1),
    ],
    ids=lambda x: f"{str(x.dtype)[6:]}-{list(x.shape)}",
)
def test_odd_inputs(x: torch.Tensor) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 3 + x
        return y, torch.where(x == 0, y, y + 1)

    for want, have in zip(f(x), stagefold.compile(f, fullgraph=True)(x), strict=True):
        assert have.dtype == want.dtype
        assert have.stride() == want.stride()
        torch.testing.assert_close(have, want, equal_nan=True)


def test_mutated_and_returned_inputs() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.add_(y)
        x[0] = 7
        return x, x[1:]

    x, y = torch.randn(4), torch.randn(4)
    a, b = x.clone(), x.clone()
    want, want_tail = f(a, y)
    have, have_tail = stagefold.compile(f, fullgraph=True)(b, y)
    assert have is b
    assert have_tail.data_ptr() == b[1:].data_ptr()
    torch.testing.assert_close(have, want)
    torch.testing.assert_close(have_tail, want_tail)


def test_recompiles_on_new_sizes_types_and_values() -> None:
    calls: list[int] = []

    def backend(module: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> object:
        calls.append(len(example_inputs))
        return module.forward

    @stagefold.compile(backend=backend, fullgraph=True)
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.sum() * n if n > 2 else x * n

    for x, n, compilations in [
        (torch.ones(3), 1, 1),
        (torch.ones(3), 1, 1),
        (torch.ones(4), 1, 2),
        (torch.ones(3, dtype=torch.int64), 1, 3),
        (torch.ones(3), 3, 4),
        (torch.ones(3), 1, 4),
    ]:
        torch.testing.assert_close(f(x, n), x.sum() * n if n > 2 else x * n)
        assert len(calls) == compilations


def test_modules_made_in_a_frame_after_torchs_own_capture_has_run() -> None:
    """torch.compile patches nn.Module.__init__ for the whole process."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.CrossEntropyLoss()(x, y)

    x, y = torch.randn(4, 5), torch.tensor([0, 1, 2, 3])
    expected = torch.compile(f, backend="eager")(x, y)
    torch.testing.assert_close(stagefold.compile(f, fullgraph=True)(x, y), expected)


def test_a_compiled_module_is_true_when_its_original_is() -> None:
    assert stagefold.compile(nn.Linear(2, 2))
    assert not stagefold.compile(nn.Sequential())


def test_what_a_later_stage_refuses_runs_plain_or_is_the_error() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x, requires_grad=True)

    with pytest.warns(UserWarning, match="AG007"):
        assert stagefold.compile(f)(torch.ones(2)).requires_grad
    with pytest.raises(stagefold.StageError, match="AG007"):
        stagefold.compile(f, fullgraph=True)(torch.ones(2))
