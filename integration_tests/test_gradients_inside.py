"""torch.autograd.grad in compiled code: gradient penalties, forces, steps of an inner optimizer, through all stages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import stagefold


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 1))


def points(requires_grad: bool = False) -> Tensor:
    return torch.linspace(-1, 1, 12).view(4, 3).requires_grad_(requires_grad)


def gradient_penalty(net: nn.Module, x: Tensor) -> Tensor:
    between = (0.3 * x + 0.7 * x.flip(0)).detach().requires_grad_(True)
    score = net(between)
    (gradient,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True, retain_graph=True)
    return ((gradient.norm(2, 1) - 1) ** 2).mean()


def force_matching(net: nn.Module, x: Tensor) -> Tensor:
    energy = net(x).sum()
    (force,) = torch.autograd.grad(energy, x, create_graph=True)
    return energy + (force**2).sum()


def inner_step(net: nn.Module, x: Tensor) -> Tensor:
    parameters = dict(net.named_parameters())
    gradients = torch.autograd.grad(net(x).pow(2).sum(), list(parameters.values()), create_graph=True)
    stepped = {name: p - 0.1 * g for (name, p), g in zip(parameters.items(), gradients, strict=True)}
    return torch.func.functional_call(net, stepped, (x,)).pow(2).sum()


def sgd_step(net: nn.Module, x: Tensor) -> Tensor:
    parameters = list(net.parameters())
    gradients = torch.autograd.grad(net(x).pow(2).sum(), parameters)
    return torch.cat([(p - 0.1 * g).flatten() for p, g in zip(parameters, gradients, strict=True)]).sum()


@pytest.mark.parametrize("backend", ["eager", "stagefold"])
@pytest.mark.parametrize(
    ("program", "needs_leaf"),
    [(gradient_penalty, False), (force_matching, True), (inner_step, False), (sgd_step, False)],
)
def test_programs_that_differentiate_inside(
    program: Callable[[nn.Module, Tensor], Tensor], needs_leaf: bool, backend: str
) -> None:
    found = []
    for compiled in (False, True):
        net, x = model(), points(needs_leaf)
        call = stagefold.compile(program, fullgraph=True, backend=backend) if compiled else program
        loss = call(net, x)
        loss.backward()
        found.append((loss, [parameter.grad for parameter in net.parameters()], x.grad))
    torch.testing.assert_close(*found)


def test_forces_without_training() -> None:
    def forces(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        energy = net(x).sum()
        return energy.detach(), -torch.autograd.grad(energy, x)[0]

    net = model()
    compiled = stagefold.compile(forces, fullgraph=True)
    torch.testing.assert_close(compiled(net, points()), forces(net, points()))
