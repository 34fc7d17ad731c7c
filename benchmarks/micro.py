"""Thirty-six small patterns under eager, torch.compile and stagefold, in one run.

    python benchmarks/micro.py [--quick] [--no-peer] [--page] [NAME ...]

Prints a line for each (see docs/performance.md for what the figures mean); `--page` writes that page's section.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from beside.case import Case, Program, network, pattern
from beside.run import main
from torch import nn
from torch.nn import functional as F

ROWS = (512, 1024)


def rope(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Rotate the halves of the last dimension."""
    first, second = x.chunk(2, -1)
    return x * angle.cos() + torch.cat((-second, first), -1) * angle.sin()


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Written out, with a causal mask."""
    scores = q @ k.transpose(-2, -1) * q.size(-1) ** -0.5
    mask = torch.ones(q.size(-2), q.size(-2), dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v


def tokens(call: Callable[..., torch.Tensor], vocabulary: int, *shapes: tuple[int, ...], count: int = 2048,
           backward: bool = False) -> Callable[[], Program]:  # fmt: skip
    """A function of a table, of row numbers, and of more tensors."""

    def build() -> Program:
        table = torch.randn(vocabulary, 256, requires_grad=backward)
        more = tuple(torch.randn(shape) for shape in shapes)
        return Program(call, (table, torch.randint(0, vocabulary, (count,)), *more), backward, (table,) * backward)

    return build


def adam() -> Program:
    """One step of Adam on twelve parameters, by its foreach form."""
    parameters = [nn.Parameter(torch.randn(size)) for size in ((256, 256), (256,)) * 6]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.Adam(parameters, lr=1e-3, foreach=True)
    optimizer.step()

    def step() -> torch.Tensor:
        optimizer.step()
        return parameters[0]

    return Program(step, ())


def module(make: Callable[[], nn.Module], *shape: int, backward: bool = False) -> Callable[[], Program]:
    """A module on one random tensor."""
    return lambda: network(make(), torch.randn(shape), backward=backward)


def bfloat16(call: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Callable[[], Program]:
    return lambda: Program(call, tuple(torch.randn(shape, dtype=torch.bfloat16) for shape in shapes))


CASES = (
    Case("add, 16 elements", pattern(lambda x, y: x + y, (16,), (16,))),
    Case("chain of arithmetic", pattern(lambda x, y: ((x * 1.5 + y).clamp(-1, 1) * y - x).relu(), ROWS, ROWS)),
    Case("chain with tanh, sigmoid", pattern(lambda x, y: torch.tanh(x) * torch.sigmoid(y) + x, ROWS, ROWS)),
    Case("chain with exp, log1p", pattern(lambda x: torch.log1p(torch.exp(-x.abs())) + x.clamp(min=0), ROWS)),
    Case("sin and cos", pattern(lambda x: torch.sin(x) * torch.cos(x), ROWS)),
    Case("bfloat16 chain", bfloat16(lambda x, y: F.silu(x) * y + x, ROWS, ROWS)),
    Case("where, masked_fill", pattern(lambda x, y: torch.where(x > y, x, -y).masked_fill(x < 0, 0.0), ROWS, ROWS)),
    Case("bias + gelu + dropout, both", pattern(
        lambda x, b: F.dropout(F.gelu(x + b), 0.1), ROWS, (1024,), backward=True), exact=False),
    Case("linear + bias + gelu", module(lambda: nn.Sequential(nn.Linear(256, 1024), nn.GELU()), 256, 256)),
    Case("mlp, tiny", module(lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)), 4, 16)),
    Case("softmax", pattern(lambda x: torch.softmax(x, -1), ROWS)),
    Case("softmax, both", pattern(lambda x: torch.softmax(x, -1), ROWS, backward=True)),
    Case("layer norm", module(lambda: nn.LayerNorm(1024), *ROWS)),
    Case("layer norm, both", module(lambda: nn.LayerNorm(1024), *ROWS, backward=True)),
    Case("batch norm, both", module(lambda: nn.BatchNorm2d(64), 8, 64, 32, 32, backward=True)),
    Case("rms norm, both", pattern(rms_norm, ROWS, (1024,), backward=True)),
    Case("group norm + silu", module(lambda: nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU()), 8, 64, 32, 32)),
    Case("group norm + silu, both", module(
        lambda: nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU()), 8, 64, 32, 32, backward=True)),
    Case("variance of rows", pattern(lambda x: torch.var_mean(x, -1), ROWS)),
    Case("mean of squares", pattern(lambda x: (x * x).mean(), ROWS)),
    Case("column sums", pattern(lambda x: (x * 2).sum(0), ROWS)),
    Case("smooth loss, both", pattern(lambda x, y: F.smooth_l1_loss(x, y), ROWS, ROWS, backward=True)),
    Case("cross entropy, both", tokens(
        lambda table, rows: F.cross_entropy(table, rows % 256), 1024, count=1024, backward=True)),
    Case("embedding + sum, both", tokens(
        lambda table, rows: table[rows].view(64, 32, 256).sum(1), 4096, backward=True)),
    Case("index_put, accumulate", tokens(
        lambda table, rows, new: table.index_put((rows,), new, accumulate=True), 1024, (2048, 256))),
    Case("attention, written out", pattern(attention, (2, 4, 128, 64), (2, 4, 128, 64), (2, 4, 128, 64))),
    Case("rope", pattern(rope, (2, 8, 128, 64), (128, 64))),
    Case("transpose + add", pattern(lambda x, y: x.t() + y, (1024, 512), ROWS)),
    Case("concatenate + relu", pattern(lambda x, y: torch.cat((x, y), 1).relu(), ROWS, ROWS)),
    Case("max pool + relu", pattern(lambda x: F.max_pool2d(x.relu(), 2), (8, 32, 32, 32))),
    Case("average pool of mish", pattern(lambda x: F.avg_pool2d(F.mish(x), 2), (8, 32, 32, 32))),
    Case("upsample + add", pattern(
        lambda x, y: F.interpolate(x, scale_factor=2.0) + y, (4, 32, 16, 16), (4, 32, 32, 32))),
    Case("argmax", pattern(lambda x: x.argmax(-1), ROWS)),
    Case("cumsum", pattern(lambda x: torch.cumsum(x * 2, -1), ROWS)),
    Case("convolution + batch norm + relu", module(
        lambda: nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()), 2, 32, 32, 32)),
    Case("adam step", adam),
)  # fmt: skip
QUICK = frozenset(("chain with tanh, sigmoid", "layer norm, both", "softmax", "add, 16 elements", "adam step"))

if __name__ == "__main__":
    main("Micro", CASES, QUICK, __doc__)
