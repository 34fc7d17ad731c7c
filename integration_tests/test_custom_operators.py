"""Operators of torch.library with fake kernels and gradients of their own, through all stages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import stagefold


@pytest.fixture
def scaled_sum() -> Iterator[torch._ops.OpOverloadPacket]:
    """scaled_sum(x, w) = (x * w) summed over rows, its backward an operator too, as grouped products in models are."""
    forward = torch.library.custom_op(
        "stagefold_tests::scaled_sum",
        lambda x, w: (x * w).sum(0),
        mutates_args=(),
        schema="(Tensor x, Tensor w) -> Tensor",
    )
    backward = torch.library.custom_op(
        "stagefold_tests::scaled_sum_backward",
        lambda x, w, g: (g.expand_as(x) * w, (g.expand_as(x) * x).sum(0)),
        mutates_args=(),
        schema="(Tensor x, Tensor w, Tensor g) -> (Tensor, Tensor)",
    )
    forward.register_fake(lambda x, w: torch.empty(x.shape[1:], dtype=x.dtype))
    backward.register_fake(lambda x, w, g: (torch.empty_like(x), torch.empty_like(w)))

    def setup(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)

    def gradient(ctx: torch.autograd.function.FunctionCtx, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ops.stagefold_tests.scaled_sum_backward(*ctx.saved_tensors, g)

    forward.register_autograd(gradient, setup_context=setup)
    yield torch.ops.stagefold_tests.scaled_sum
    forward._lib._destroy()
    backward._lib._destroy()


@pytest.mark.parametrize("backend", ["stagefold", "eager"])
def test_forward_and_backward(scaled_sum: torch._ops.OpOverloadPacket, backend: str) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return scaled_sum(torch.tanh(x), w).relu() + scaled_sum(x, w=w * 2)

    compiled = stagefold.compile(f, backend=backend, fullgraph=True)
    results = []
    for call in (f, compiled):
        torch.manual_seed(1)
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
        y = call(x, w)
        y.square().sum().backward()
        results.append((y, x.grad, w.grad))
    for want, have in zip(*results, strict=True):
        torch.testing.assert_close(have, want)
