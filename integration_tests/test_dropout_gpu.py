"""Random numbers computed inside of kernels are those that ATen's kernels draw, on an NVIDIA GPU (`nox -s gpu`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import stagefold
from integration_tests.zoo.devices import ON_GPU
from integration_tests.zoo.traces import traced
from stagefold.errors import RunsPlain
from stagewire.printer import print_document

pytestmark = ON_GPU
SHAPES = [(1,), (7,), (1000,), (33, 7), (33, 20), (4096, 1024), (5, 1022), (2**24 + 4,), (2**24 + 1,), (3, 2, 96)]
EXACT = {"numerics": "eager"}


def programs_of(traces: Path) -> str:
    """The text of the programs that were made."""
    return "".join(map(print_document, traced(traces, "program")))


def both(program: Callable[..., Tensor], inputs: list[Tensor], options: dict[str, Any], seed: int = 3) -> list[Any]:
    """Results, gradients and what is drawn next, of eager and of the compiled program."""
    found = []
    for function in (program, stagefold.compile(program, fullgraph=True, options=options)):
        torch.manual_seed(seed)
        out = function(*inputs)
        gradients = torch.autograd.grad(out.float().sum(), inputs) if out.requires_grad else ()
        found.append(
            (out.detach(), *gradients, torch.rand(5, device="cuda"), torch.tensor(torch.cuda.initial_seed() % 97))
        )
    return found


def check(program: Callable[..., Tensor], inputs: list[Tensor], options: dict[str, Any], seed: int = 3) -> None:
    expected, got = both(program, inputs, options, seed)
    for have, want in zip(got, expected, strict=True):
        assert torch.equal(have, want)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_masks_of_dropout(shape: tuple[int, ...], dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.rand(shape, device="cuda").to(dtype).requires_grad_()
    check(lambda x: F.dropout(x + 1, 0.3) * 2, [x], EXACT | {"trace_dir": str(tmp_path)})
    text = programs_of(tmp_path)
    assert "philox_state" in text
    assert "native_dropout.default" not in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dropout_in_place(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """It draws with bernoulli_, which takes other numbers for float64."""
    x = torch.rand(shape, device="cuda").to(dtype)
    check(lambda x: F.dropout(x + 1, 0.3, inplace=True) * 2, [x], EXACT)


def test_several_draws_in_order(tmp_path: Path) -> None:
    def program(x: Tensor) -> Tensor:
        x = F.dropout(x + 1, 0.1)
        y = x * torch.randn_like(x)
        y = F.dropout(y * 2, 0.5) + torch.rand(64, device="cuda") + torch.rand_like(x)
        return y * torch.empty(32, 1, device="cuda").bernoulli_(0.7) * (F.dropout(x * 3, 0.4) + 1)

    x = torch.rand(32, 64, device="cuda", requires_grad=True)
    expected, got = both(program, [x], {"trace_dir": str(tmp_path)})
    torch.testing.assert_close(got, expected)
    assert torch.equal(got[-2], expected[-2])
    assert "aten.bernoulli" not in programs_of(tmp_path)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**63, 2**64 - 1, -5])
def test_seeds(seed: int) -> None:
    check(lambda x: F.dropout(x + 1, 0.3), [torch.rand(1000, device="cuda")], EXACT, seed)


def test_attention_draws_between() -> None:
    def program(q: Tensor, w: Tensor) -> Tensor:
        q = F.dropout(q + 1, 0.1)
        a = F.scaled_dot_product_attention(q, q, q, dropout_p=0.2).transpose(1, 2).reshape(2, 128, -1)
        return F.dropout(F.layer_norm(F.dropout(a @ w, 0.3), (256,)), 0.1)

    q = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    expected, got = both(program, [q, w], {})
    assert torch.equal(got[0] == 0, expected[0] == 0)
    assert torch.equal(got[-2], expected[-2])
    torch.testing.assert_close(got[:3], expected[:3], rtol=0.1, atol=0.1)


@pytest.mark.parametrize("budget", [1.0, 0.5, 0.0])
def test_masks_are_computed_again(budget: float) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return F.dropout((x @ w).tanh(), 0.5).matmul(w).exp().sum()

    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    w = (torch.randn(64, 64, device="cuda") / 16).requires_grad_()
    expected, got = both(program, [x, w], {"partition.memory_budget": budget})
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


def test_checkpoints() -> None:
    def program(x: Tensor) -> Tensor:
        def block(x: Tensor) -> Tensor:
            return F.dropout(x * 2, 0.5) * x

        return checkpoint(block, checkpoint(block, x * 1, use_reentrant=False), use_reentrant=False)

    check(program, [torch.rand(100, 100, device="cuda", requires_grad=True)], EXACT)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "turned": lambda x: (x + 1).t(),
    "turned, odd": lambda x: (x[:33, :7] + 1).t(),
    "windows": lambda x: (x + 1)[:, :20],
    "from the second element": lambda x: (x + 1).flatten()[1:],
    "from the fourth element": lambda x: (x + 1).flatten()[4:],
    "an input": lambda x: x,
    "a window on an input": lambda x: x.flatten()[1:],
    "spread out": lambda x: (x[:1] + 1).expand(10, 64),
    "images": lambda x: (x.view(1, 8, 8, 32) + 1).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    x = torch.rand(32, 64, device="cuda", requires_grad=True)
    check(lambda x: F.dropout(LAYOUTS[name](x), 0.4) * 2, [x], EXACT)  # a sum would be one instruction with the product


def test_an_input_that_begins_anywhere() -> None:
    memory = torch.rand(1025, device="cuda")
    call = stagefold.compile(lambda x: (F.dropout(x, 0.4), F.dropout(x * 2, 0.4)), fullgraph=True, options=EXACT)
    for x in (memory[:1024], memory[1:]):
        torch.manual_seed(1)
        got = call(x)
        torch.manual_seed(1)
        assert torch.equal(got[0], F.dropout(x, 0.4))
        assert torch.equal(got[1], F.dropout(x * 2, 0.4))


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_all_or_nothing(probability: float) -> None:
    x = torch.rand(100, device="cuda", requires_grad=True)
    check(lambda x: F.dropout(x + 1, probability) * 2, [x], EXACT)


def test_modules_and_kinds_of_dropout() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 8)
            self.drop = nn.Dropout(0.2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.drop(self.first(x).relu())
            x = F.alpha_dropout(x, 0.1, True) + F.dropout1d(x[:, None], 0.5)[:, 0]
            return self.second(F.dropout(x, 0.3, inplace=True))

    net = Net().cuda()
    compiled = stagefold.compile(net, fullgraph=True)
    x = torch.randn(16, 64, device="cuda")
    for _ in range(3):
        results = []
        for module in (net, compiled):
            torch.manual_seed(5)
            out = module(x)
            net.zero_grad()
            out.sum().backward()
            results.append((out, *(p.grad.clone() for p in net.parameters())))
        torch.testing.assert_close(results[1], results[0])


def test_steps_differ_and_seeds_repeat() -> None:
    call = stagefold.compile(lambda x: F.dropout(x + 1, 0.5), fullgraph=True)
    x = torch.ones(1000, device="cuda")
    torch.manual_seed(1)
    first, second = call(x), call(x)
    torch.manual_seed(1)
    assert torch.equal(call(x), first)
    assert torch.equal(call(x), second)
    assert not torch.equal(first, second)


def test_a_graph_that_the_caller_records_draws_at_each_replay() -> None:
    call = stagefold.compile(lambda x: F.dropout(x + 1, 0.5), fullgraph=True)
    x = torch.ones(1000, device="cuda")
    call(x)
    graph = torch.cuda.CUDAGraph()
    with pytest.warns(RunsPlain, match="records a CUDA graph"), torch.cuda.graph(graph):
        result = call(x)
    masks = []
    for _ in range(2):
        graph.replay()
        masks.append(result == 0)
    assert not torch.equal(*masks)
    torch.manual_seed(1)
    again = call(x)
    torch.manual_seed(1)
    assert torch.equal(again, F.dropout(x + 1, 0.5))


def test_recorded_programs_leave_drawing_to_aten() -> None:
    call = stagefold.compile(
        lambda x: F.dropout((x + 1).sin().cumsum(0).cumsum(0).cumsum(0), 0.5), mode="reduce-overhead"
    )
    x = torch.ones(1000, device="cuda")
    torch.manual_seed(1)
    drawn = [call(x) == 0 for _ in range(5)]
    torch.manual_seed(1)
    for mask in drawn:
        assert torch.equal(mask, F.dropout(x, 0.5) == 0)
