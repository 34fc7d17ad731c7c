"""Where compile() may stand: on functions, methods of each kind, modules, classes, in place."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import stagefold

X = torch.tensor([1.0, -2.0, 3.0])
eager = functools.partial(stagefold.compile, backend="eager", fullgraph=True)


class Thing:
    factor = 2

    @eager
    def method(self, x):
        return x * self.factor

    @staticmethod
    @eager
    def static(x):
        return x * 3

    @classmethod
    @eager
    def of_class(cls, x):
        return x * cls.factor + 1

    @property
    @eager
    def weight(self):
        return torch.ones(3) * self.factor

    @eager
    def __call__(self, x):
        return self.method(x) + self.static(x)


def test_methods() -> None:
    thing = Thing()
    for _ in range(2):
        assert torch.equal(thing.method(X), X * 2)
        assert torch.equal(thing.static(X), X * 3)
        assert torch.equal(Thing.of_class(X), X * 2 + 1)
        assert torch.equal(thing.weight, torch.full((3,), 2.0))
        assert torch.equal(thing(X), X * 5)
    thing.factor = 5
    assert torch.equal(thing.method(X), X * 5)


def test_decorators_with_arguments_and_a_forward() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        @stagefold.compile(backend="eager", fullgraph=True)
        def forward(self, x):
            return torch.relu(self.linear(x))

    model = Model()
    torch.testing.assert_close(model(X), torch.relu(model.linear(X)))
    torch.testing.assert_close(eager(model)(X), torch.relu(model.linear(X)))
    model.register_forward_hook(lambda module, args, output: output + 1)
    torch.testing.assert_close(model(X), torch.relu(model.linear(X)) + 1)


def test_a_class() -> None:
    @stagefold.compile(backend="eager")
    class Model(nn.Module):
        def forward(self, x):
            return x * 2 if stagefold.is_compiling() else x * 3

    assert isinstance(Model, type)
    assert torch.equal(Model()(X), X * 2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("shift", torch.ones(3))
        self.calls = 0

    def forward(self, x, scale: float = 1.0):
        self.calls += 1
        return self.linear(x) * scale + self.shift


@pytest.fixture(params=["wrapped", "in place"])
def pair(request: pytest.FixtureRequest) -> tuple[Model, Any]:
    model = Model()
    return model, eager(model) if request.param == "wrapped" else stagefold.compile_in_place(
        model, backend="eager", fullgraph=True
    )


def plain(model: Model, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return model.linear(x) * scale + model.shift


def test_state_and_attributes_are_the_modules(pair: tuple[Model, Any]) -> None:
    model, compiled = pair
    assert isinstance(compiled, nn.Module)
    torch.testing.assert_close(compiled(X, scale=2.0), plain(model, X, 2.0))
    assert model.calls == compiled.calls == 1
    assert list(compiled.state_dict()) == ["shift", "linear.weight", "linear.bias"]
    assert [name for name, _ in compiled.named_parameters()] == ["linear.weight", "linear.bias"]
    compiled.load_state_dict({key: value * 2 for key, value in model.state_dict().items()})
    torch.testing.assert_close(compiled(X), plain(model, X))
    compiled.shift = torch.zeros(3)
    torch.testing.assert_close(compiled(X), model.linear(X))
    compiled.double()
    torch.testing.assert_close(compiled(X.double()), plain(model, X.double()))


def test_hooks_added_and_removed_later(pair: tuple[Model, Any]) -> None:
    model, compiled = pair
    compiled(X)
    handles = [
        compiled.register_forward_hook(lambda module, args, output: output + 1),
        compiled.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
        model.linear.register_forward_hook(lambda module, args, output: output * 3),
    ]
    expected = torch.nn.functional.linear(X * 2, model.linear.weight, model.linear.bias) * 3 + model.shift + 1
    torch.testing.assert_close(compiled(X), expected)
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(compiled(X), plain(model, X))


def test_copies_and_pickles(pair: tuple[Model, Any]) -> None:
    model, compiled = pair
    compiled(X)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert other.linear.weight is not model.linear.weight
        torch.testing.assert_close(other(X), compiled(X))


def test_in_place_keeps_the_type_and_the_children() -> None:
    model = nn.Sequential(Model(), nn.ReLU())
    assert stagefold.compile_in_place(model[0], backend="eager") is model[0]
    assert type(model[0]) is Model
    expected = torch.relu(plain(model[0], X))
    torch.testing.assert_close(model(X), expected)
    torch.testing.assert_close(eager(model)(X), expected)
    with pytest.raises(stagefold.StageError, match="SF005"):
        stagefold.compile_in_place(lambda x: x)


def test_compiled_in_compiled() -> None:
    inner = eager(Model())
    outer = eager(nn.Sequential(inner, nn.ReLU()))
    torch.testing.assert_close(outer(X), torch.relu(plain(inner._orig_mod, X)))
    twice = eager(eager(lambda x: x * 2))
    assert torch.equal(twice(X), X * 2)
