"""A batch of gradients in one backward: `is_grads_batched=True`, and what torch makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stagefold

NETWORK = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))


def two_results(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin() * 2, x.cos().sum(-1)


PROGRAMS: list[Callable[[Tensor], Any]] = [
    torch.tanh, NETWORK, lambda x: F.layer_norm(x, (3,)) @ x.t(), lambda x: x.cumsum(-1)[:, 1:].exp(),
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_batches_of_gradients(program: Callable[[Tensor], Any], create_graph: bool, dynamic: bool) -> None:
    compiled = stagefold.compile(program, fullgraph=True, dynamic=dynamic)
    for rows in (2, 4):
        x = torch.randn(rows, 3, requires_grad=True)
        found = []
        for run in (compiled, program):
            y = run(x)
            for count in (3, 1):
                gradients = torch.randn(count, *y.shape, generator=torch.Generator().manual_seed(count))
                (batch,) = torch.autograd.grad(
                    y, x, gradients, is_grads_batched=True, retain_graph=True, create_graph=create_graph
                )
                found.append(batch)
                if create_graph:
                    found.append(torch.autograd.grad(batch.square().sum(), x, retain_graph=True)[0])
        half = len(found) // 2
        torch.testing.assert_close(found[:half], found[half:], rtol=1e-4, atol=1e-5)


def test_one_of_two_results_has_a_batch() -> None:
    x, found = torch.randn(4, 3, requires_grad=True), []
    for run in (stagefold.compile(two_results, fullgraph=True), two_results):
        y, z = run(x)
        batch = torch.arange(24.0).view(2, 4, 3)
        found.append(torch.autograd.grad(y, x, batch, is_grads_batched=True, retain_graph=True)[0])
        found.append(torch.autograd.grad((y, z), x, (batch, batch[..., 0]), is_grads_batched=True)[0])
    torch.testing.assert_close(found[:2], found[2:])


@pytest.mark.parametrize("strategy", ["reverse-mode"])
def test_jacobians_and_hessians_of_autograd(strategy: str) -> None:
    x = torch.randn(4, 3)
    compiled = stagefold.compile(NETWORK, fullgraph=True)
    jacobian, hessian = torch.autograd.functional.jacobian, torch.autograd.functional.hessian
    torch.testing.assert_close(
        jacobian(compiled, x, vectorize=True, strategy=strategy), jacobian(NETWORK, x), rtol=1e-4, atol=1e-5
    )
    total = stagefold.compile(lambda x: NETWORK(x).square().sum(), fullgraph=True)
    expected = hessian(lambda x: NETWORK(x).square().sum(), x)
    torch.testing.assert_close(hessian(total, x, vectorize=True), expected, rtol=1e-4, atol=1e-5)
