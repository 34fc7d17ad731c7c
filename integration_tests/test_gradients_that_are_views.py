"""A gradient that is a view of the one that arrives is one, as in eager: it is not copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stagefold
from integration_tests.zoo.devices import DEVICES

PROGRAMS: dict[str, Callable[..., Tensor]] = {
    "a copied view": lambda x, b: torch.view_copy(x, (-1,)),
    "a transpose, as rows": lambda x, b: x.t().contiguous(),
    "a part of a concatenation": lambda x, b: torch.cat([x, b.sin()[:2]]),
    "two inputs, one as it is": lambda x, b: torch.view_copy(x, (-1,)) + torch.view_copy(b, (-1,)),
    "a small part of a large one": lambda x, b: torch.cat([x[:1].clone(), (b + 1).repeat(8, 1)]),
    "beside what is computed": lambda x, b: torch.view_copy(x, (-1,)) * 1 + b.sin().sum(),
}


def outcome(program: Callable[..., Tensor], device: str) -> list[Any]:
    """Gradients of three backwards, the first two of one graph; the gradient that was given is left as it was."""
    x, b = (torch.arange(24.0, device=device).view(6, 4).add_(n).requires_grad_() for n in (1, 2))
    found: list[Any] = []
    for round in range(2):
        result = program(x, b)
        given = torch.arange(float(result.numel()), device=device).view_as(result) + round
        before = given.clone()
        for again in (True, False):
            gradients = torch.autograd.grad(result, (x, b), given, retain_graph=again, allow_unused=True)
            found += [None if one is None else (one.clone(), one.stride()) for one in gradients]
            assert torch.equal(given, before)
        result = program(x, b)
        result.backward(given)
        assert x.grad is not None
        found.append(x.grad.clone())
        x.grad.zero_()
        x.grad = b.grad = None
    return found


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, device: str, mode: str) -> None:
    compiled = stagefold.compile(PROGRAMS[name], fullgraph=True, mode=mode)
    torch.testing.assert_close(outcome(compiled, device), outcome(PROGRAMS[name], device), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["a copied view", "a transpose, as rows", "a part of a concatenation"])
def test_shares_memory_where_eager_does(name: str) -> None:
    for program in (PROGRAMS[name], stagefold.compile(PROGRAMS[name], fullgraph=True)):
        x, b = torch.ones(6, 4, requires_grad=True), torch.ones(6, 4)
        result = program(x, b)
        given = torch.ones_like(result)
        (gradient,) = torch.autograd.grad(result, x, given)
        assert gradient.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()


class Kept(torch.autograd.Function):
    """Its gradient is a copy of what it saved, whatever arrives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward((x @ x.t() @ x).t())
        return x.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return ctx.saved_tensors[0].clone().t()


def test_what_is_saved_is_copied() -> None:
    """Else a gradient that is cleared in place would change that of the next backward."""
    found = []
    for program in (Kept.apply, stagefold.compile(lambda x: Kept.apply(x), fullgraph=True)):
        x = torch.arange(24.0).view(6, 4).requires_grad_()
        result = program(x)
        for again in (True, False):
            (gradient,) = torch.autograd.grad(result, x, retain_graph=again)
            found.append(gradient.clone())
            gradient.zero_()
    assert all(torch.equal(one, found[0]) for one in found)
