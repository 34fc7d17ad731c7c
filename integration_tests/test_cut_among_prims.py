"""The cut goes through the middle of ops: eager's gradients, from other values than a cut between ATen calls saves."""

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
from aotgrad import AotGrad, cut
from aotgrad.testing import capture_by_torch_function
from stagefold.options import Options
from stagefold.pipeline import Pipeline
from stagewire.capture import Capture
from stagewire.prim import Prim

PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gelu and a norm": lambda x, w: F.gelu(F.layer_norm(x @ w, (16,))).square().sum(),
    "dropout and softmax": lambda x, w: (F.dropout(x @ w, 0.3).softmax(-1) @ w).logsumexp(-1).sum(),
    "pooled": lambda x, w: F.max_pool2d(F.mish(x @ w).view(1, 1, 8, 16), 2).exp().mean(),
    "overwritten": lambda x, w: F.silu(x @ w).mul_(2).cumsum(0).tanh().sum(),
}


@pytest.mark.parametrize("budget", [1.0, 0.4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_a_cut_through_ops(name: str, budget: float) -> None:
    options = {"partition.memory_budget": budget, "cache": False}
    found: list[Any] = []
    for call in (PROGRAMS[name], stagefold.compile(PROGRAMS[name], fullgraph=True, options=options)):
        torch.manual_seed(0)
        x, w = torch.randn(8, 16, requires_grad=True), torch.randn(16, 16).div(4).requires_grad_()
        result = call(x, w)
        result.backward()
        found.append((result, x.grad, w.grad, torch.rand(2)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def both(capture: Capture) -> tuple[Prim, Prim]:
    """Cut between ATen calls, and among prims."""
    return cut(AotGrad().run(capture)), Pipeline.build(Options()).run(capture, until="cut")


def test_less_is_saved_where_an_op_keeps_statistics() -> None:
    x, w = torch.randn(8, 16, requires_grad=True), torch.randn(16, 16, requires_grad=True)
    capture, _ = capture_by_torch_function(PROGRAMS["gelu and a norm"], [x, w])
    whole, through = both(capture)
    assert through.partition.saved_bytes < whole.partition.saved_bytes


def test_a_softmax_that_is_returned_is_read_in_the_backward_not_computed_again() -> None:
    capture, _ = capture_by_torch_function(lambda x: x.softmax(-1), [torch.randn(8, 16, requires_grad=True)])
    _, prim = both(capture)
    assert prim.forward is not None
    assert prim.backward is not None
    assert "prims.exp" in [node.target for node in prim.forward.nodes]
    assert "prims.exp" not in [node.target for node in prim.backward.nodes]


def test_the_copy_of_an_input_is_made_for_the_backward_alone() -> None:
    """The program may write the input before the backward runs; where nothing of the copy is saved there is none."""
    saved, unsaved = (
        both(capture_by_torch_function(program, [torch.randn(4, requires_grad=True)])[0])[1]
        for program in (lambda x: x.clone().sin(), lambda x: x.clone() * 2)
    )
    assert [node.target for node in saved.forward.nodes] == ["prims.clone", "prims.sin"]
    assert [node.target for node in unsaved.forward.nodes] == ["prims.mul"]


def test_what_the_program_overwrites_is_copied_where_the_backward_reads_it() -> None:
    def program(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        y = (x * 2 * w + x * 3 * v).sum()
        x.add_(1)
        return y

    def given() -> list[Tensor]:
        return [torch.arange(4.0), torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)]

    for prim in both(capture_by_torch_function(program, given())[0]):
        assert "prims.clone" in [node.target for node in prim.forward.nodes]
    found = []
    for call in (program, stagefold.compile(program, fullgraph=True)):
        x, w, v = given()
        call(x, w, v).backward()
        found.append((x, w.grad, v.grad))
    torch.testing.assert_close(found[1], found[0])


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
        saved.extend(prim.partition.saved_bytes for prim in both(capture))
        return bytecap.executor(capture)

    bytecap.optimize(program, backend, fullgraph=True)(torch.randn(16, 8))
    assert saved[1] == saved[0]
