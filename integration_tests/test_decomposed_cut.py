"""The partitioner on a decomposed joint graph: the same gradients from other saved values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import bytecap
import stagefold
from aotgrad import AotGrad, Options
from aotgrad.testing import capture_by_torch_function
from primops.stage import lower_graph

PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gelu and a norm": lambda x, w: F.gelu(F.layer_norm(x @ w, (16,))).square().sum(),
    "dropout and softmax": lambda x, w: (F.dropout(x @ w, 0.3).softmax(-1) @ w).logsumexp(-1).sum(),
    "pooled": lambda x, w: F.max_pool2d(F.mish(x @ w).view(1, 1, 8, 16), 2).exp().mean(),
    "overwritten": lambda x, w: F.silu(x @ w).mul_(2).cumsum(0).tanh().sum(),
}


@pytest.mark.parametrize("budget", [1.0, 0.4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_a_cut_through_ops(name: str, budget: float) -> None:
    options = {"aotgrad.decompose": lower_graph, "aotgrad.memory_budget": budget, "cache": False}
    found: list[Any] = []
    for call in (PROGRAMS[name], stagefold.compile(PROGRAMS[name], fullgraph=True, options=options)):
        torch.manual_seed(0)
        x, w = torch.randn(8, 16, requires_grad=True), torch.randn(16, 16).div(4).requires_grad_()
        result = call(x, w)
        result.backward()
        found.append((result, x.grad, w.grad, torch.rand(2)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_less_is_saved_where_an_op_keeps_statistics() -> None:
    x, w = torch.randn(8, 16, requires_grad=True), torch.randn(16, 16, requires_grad=True)
    capture, _ = capture_by_torch_function(PROGRAMS["gelu and a norm"], [x, w])
    whole, through = (AotGrad().run(capture, Options(decompose=how)).partition for how in (None, lower_graph))
    assert whole is not None
    assert through is not None
    assert through.saved_bytes < whole.saved_bytes


def test_a_softmax_that_is_returned_is_read_in_the_backward_not_computed_again() -> None:
    capture, _ = capture_by_torch_function(lambda x: x.softmax(-1), [torch.randn(8, 16, requires_grad=True)])
    grad = AotGrad().run(capture, Options(decompose=lower_graph))
    assert grad.backward is not None
    assert "prims.exp" in [node.target for node in grad.forward.nodes]
    assert "prims.exp" not in [node.target for node in grad.backward.nodes]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(8), torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1)


def test_what_is_inside_of_a_checkpoint_is_not_saved() -> None:
    blocks = torch.nn.ModuleList(Block() for _ in range(3))
    saved: list[Any] = []

    def program(x: Tensor) -> Tensor:
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x.square().mean()

    def backend(capture: Any, inputs: Any) -> Any:
        for how in (None, lower_graph):
            partition = AotGrad().run(capture, Options(decompose=how)).partition
            assert partition is not None
            saved.append(partition.saved_bytes)
        return bytecap.executor(capture)

    bytecap.optimize(program, backend, fullgraph=True)(torch.randn(16, 8))
    assert saved[1] == saved[0]
