"""Calls that change a tensor object have no place in a graph: they run between two, and the frame stays compiled."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import stagefold
from bytecap import CaptureWarning
from bytecap.testing import differences
from stagefold import StageError


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def forces(model, positions):
    """Energy and forces, as models of atoms compute them."""
    shifted = positions.sin()
    positions.requires_grad_(True)
    energy = (model(positions) * shifted.sum()).sum()
    return energy, -torch.autograd.grad(energy, positions, create_graph=True)[0]


def attack(model, x):
    """One step of projected gradient descent."""
    x = (x * 1.5).detach().requires_grad_()
    model(x).logsumexp(1).sum().backward()
    return (x + 0.1 * x.grad.sign()).detach()


def keeps_a_gradient(model, x):
    hidden = model[0](x)
    hidden.retain_grad()
    return hidden, model[2](hidden.tanh())


def transposes_its_input(model, x):
    y = x * 2
    x.t_()
    return model(y), x.sum(0)


PROGRAMS = [forces, attack, keeps_a_gradient, transposes_its_input]


def ran(program: Callable[..., Any], wrap: Callable[[Any], Any]) -> tuple[Any, ...]:
    model = net()
    run, seen = wrap(program), []
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 3)
        results = run(model, x)
        tensors = results if isinstance(results, tuple) else (results,)
        trained = [one.pow(2).sum() for one in tensors if one.requires_grad]
        if trained:
            torch.stack(trained).sum().backward()
        seen.append((tensors, x, [copy.deepcopy(one.grad) for one in model.parameters()]))
        seen.append([one.grad for one in tensors if one.retains_grad])
    return tuple(seen)


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_stands_around_them_is_compiled(program) -> None:
    """The frame ran plain as a whole, with a warning."""
    compiled: list[Any] = []

    def wrap(function: Callable[..., Any]) -> Any:
        compiled.append(stagefold.compile(function))
        return compiled[0]

    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        made = ran(program, wrap)
    assert not differences(ran(program, lambda function: function), made)
    assert compiled[0]._backend.reports


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_graph_of_everything_is_refused(program) -> None:
    with pytest.raises(StageError):
        stagefold.compile(program, fullgraph=True)(net(), torch.randn(4, 3))
