"""Stacks of equal layers, few copies of which are scheduled: results, gradients and buffers are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import stagefold

LAYERS = 18


class Stack(nn.Module):
    """Layers of one kind, called one after the other; `states`: all of their results are given out."""

    def __init__(self, layer: Callable[[], nn.Module], *, states: bool = False, mask: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(LAYERS))
        self.states, self.mask = states, mask

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        more = (torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1),) if self.mask else ()
        results = [x]
        for layer in self.layers:
            results.append(layer(results[-1], *more))
        return tuple(results[1:]) if self.states else (results[-1],)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.nn.functional.gelu(self.linear(self.norm(x)))


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm(self.convolution(x)))


def transformer(dropout: float) -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout, batch_first=True)


STACKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer": (lambda: Stack(lambda: transformer(0.0), mask=True), (2, 6, 16)),
    "dropout": (lambda: Stack(lambda: transformer(0.1), mask=True), (2, 6, 16)),
    "one residual": (lambda: Stack(Residual), (3, 16)),
    "states": (lambda: Stack(Residual, states=True), (3, 16)),
    "convolutions": (lambda: Stack(Convolution), (2, 4, 6, 6)),
}


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_step_of_training_is_eagers(name: str, dynamic: bool) -> None:
    make, shape = STACKS[name]
    torch.manual_seed(0)
    model = make().double()  # differences are faults, not roundings
    other = copy.deepcopy(model)
    call = stagefold.compile(other, dynamic=dynamic, fullgraph=True)
    for rows in (shape[0], shape[0] + 1):
        x = torch.randn(rows, *shape[1:], dtype=torch.float64)
        found = []
        for run, of in ((model, model), (call, other)):
            torch.manual_seed(1)
            of.zero_grad()
            results = run(x)
            sum((one * one).sum() for one in results).backward()
            found.append([*results, *(one.grad for one in of.parameters()), *of.buffers()])
        for mine, eager in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(mine, eager, rtol=1e-8, atol=1e-10)


def test_what_each_layer_writes_is_written() -> None:
    """A row of a cache for each layer, as in decoding."""
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(LAYERS))

    def program(x: Tensor, caches: list[Tensor], at: int) -> Tensor:
        for layer, cache in zip(layers, caches, strict=True):
            cache[at] = layer(x)
            x = torch.tanh(x + cache.sum(0))
        return x

    call = stagefold.compile(program, fullgraph=True)
    with torch.no_grad():
        for at in (0, 2):
            x, caches = torch.randn(8), [torch.randn(4, 8) for _ in range(LAYERS)]
            others = [cache.clone() for cache in caches]
            torch.testing.assert_close(call(x, others, at), program(x, caches, at))
            torch.testing.assert_close(others, caches)


def test_halves_put_together_again() -> None:
    """What a point hands on from one section to the next is at hand in a loop over all points, too."""

    def program(x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + torch.cat([half.sin() for half in x.split(2, 1)], 1)
        return x.sum()

    x = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(stagefold.compile(program, fullgraph=True)(x), program(x))
