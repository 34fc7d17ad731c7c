"""Programs run plain and captured: parameters and modules that the captured code makes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bytecap import executor, optimize
from bytecap.testing import Programs

PROGRAMS = Programs()


def matrix() -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(3))


class Grows(nn.Module):
    """Makes its parameters, and a layer, when it is called first."""

    def __init__(self):
        super().__init__()
        self.scale = None
        self.layer = None

    def forward(self, x):
        if self.scale is None:
            self.scale = nn.Parameter(torch.full((x.shape[-1],), 2.0))
        if not hasattr(self, "shift"):
            self.register_parameter("shift", nn.Parameter(torch.zeros(x.shape[-1])))
        if self.layer is None:
            self.layer = nn.Sequential(nn.Linear(x.shape[-1], 2), nn.BatchNorm1d(2))
        return self.layer(x * self.scale + self.shift)


@PROGRAMS.add(Grows, matrix)
def lazily_made(module, x):
    first = module(x)
    return first, module(x), [name for name, _ in module.named_parameters()]


@PROGRAMS.add(matrix)
def returned(x):
    weight = nn.Parameter(torch.ones(4))
    frozen = nn.Parameter(x.clone(), requires_grad=False)
    with torch.no_grad():
        weight.add_(1)
    weight.tag = "new"
    return x * weight, weight, frozen, isinstance(weight, nn.Parameter), weight.is_leaf, weight.grad, nn.Parameter()


@PROGRAMS.add(matrix)
def layers(x):
    layer = nn.Linear(4, 3)
    norm = nn.LayerNorm(3, bias=False)
    return norm(layer(x)), layer, F.relu(nn.Conv1d(1, 2, 3)(x[:, None]))


@PROGRAMS.add(matrix)
def wrong_data(x):
    try:
        return nn.Parameter(torch.ones(3, dtype=torch.int64))
    except RuntimeError as error:
        return str(error), x * 2


@PROGRAMS.add(matrix, refusal="BC002")
def on_outside_memory(x):
    weight = nn.Parameter(x)
    x.add_(1)
    return weight * 2


@PROGRAMS.add(matrix, refusal="BC002")
def on_a_view(x):
    y = x * 2
    weight = nn.Parameter(y[0])
    y.add_(1)
    return weight * 2


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


def test_gradients_arrive_at_what_was_made():
    outcomes = []
    for wrap in (lambda module: module, lambda module: optimize(module, lambda c, _: executor(c), fullgraph=True)):
        torch.manual_seed(1)
        module = Grows()
        call = wrap(module)
        for _ in range(3):
            call(torch.ones(3, 4)).square().sum().backward()
        outcomes.append([parameter.grad for parameter in module.parameters()])
    assert len(outcomes[0]) == 6
    for expected, found in zip(*outcomes, strict=True):
        torch.testing.assert_close(found, expected)


def test_each_call_makes_its_own():
    call = optimize(lambda x: nn.Parameter(x + 1), lambda c, _: executor(c), fullgraph=True)
    first, second = call(torch.zeros(2)), call(torch.ones(2))
    assert first is not second
    assert (first.tolist(), second.tolist()) == ([1, 1], [2, 2])
