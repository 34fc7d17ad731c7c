"""A model on two GPUs: microseconds of a step of eager, torch.compile and stagefold by the wall clock, in turns.

    python benchmarks/two_gpus.py [--devices cuda:0 cuda:1] [--no-peer]

"recorded": with mode="reduce-overhead".

Six blocks of a norm and two products on each device, 64 wide, so that the processor is what is waited for. Times are
minima over rounds of ten steps; the worst relative error of the loss and of all gradients is beside float64.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import stagefold


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Pipeline(nn.Module):
    """Half of the blocks on each device."""

    def __init__(self, first: str, second: str, width: int = 64, blocks: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.second = second
        self.one = nn.Sequential(*[Block(width) for _ in range(blocks)]).to(first)
        self.two = nn.Sequential(*[Block(width) for _ in range(blocks)]).to(second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x).to(self.second)).square().mean()


def infer(run: Callable[..., torch.Tensor], net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return run(x)


def train(run: Callable[..., torch.Tensor], net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    net.zero_grad()
    loss = run(x)
    loss.backward()
    return loss


def synchronize(devices: list[str]) -> None:
    for device in devices:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs=2, default=["cuda:0", "cuda:1"])
    parser.add_argument("--no-peer", action="store_true")
    arguments = parser.parse_args()
    net, exact = Pipeline(*arguments.devices), Pipeline("cpu", "cpu").double()
    inputs = torch.randn(32, 64)
    expected = [train(exact, exact, inputs.double()).detach(), *(p.grad for p in exact.parameters())]
    x = inputs.to(arguments.devices[0])
    engines: dict[str, Callable[[Any], Any]] = {"eager": lambda f: f}
    for name, compiler in {"ours": stagefold.compile, "torch": torch.compile}.items():
        if name == "ours" or not arguments.no_peer:
            engines |= {name: compiler, f"{name}, recorded": partial(compiler, mode="reduce-overhead")}
    runs = {engine: wrap(net) for engine, wrap in engines.items()}
    for engine, run in runs.items():
        start = time.perf_counter()
        for _ in range(3):
            infer(run, net, x)
        for _ in range(2):
            train(run, net, x)
        found = [train(run, net, x).detach(), *(p.grad for p in net.parameters())]
        synchronize(arguments.devices)
        first = time.perf_counter() - start
        pairs = zip(found, expected, strict=True)
        error = max(((a.cpu().double() - b).abs().max() / b.abs().max()).item() for a, b in pairs)
        print(f"{engine:15s} first {first:6.2f} s  err {error:.1e}", flush=True)
    for step in (infer, train):
        least = dict.fromkeys(runs, float("inf"))
        for _ in range(6):
            for engine, run in runs.items():
                synchronize(arguments.devices)
                start = time.perf_counter()
                for _ in range(10):
                    step(run, net, x)
                synchronize(arguments.devices)
                least[engine] = min(least[engine], (time.perf_counter() - start) / 10)
        print(step.__name__, "  ".join(f"{engine} {seconds * 1e6:.0f} us" for engine, seconds in least.items()))


if __name__ == "__main__":
    main()
