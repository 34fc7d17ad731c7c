"""What a call pays for guards and dispatch, beside torch.compile, in one run.

    python benchmarks/guards.py [--layers 17] [--repeat 300] [--rounds 7]

Each program is captured by both; the compiled graph is replaced by a function that returns ready
tensors, so that the time of a call is guards, reading of inputs and dispatch alone. Ours and theirs take turns; the
best of the rounds' medians is printed, in microseconds. "nothing" returns a ready tensor, and the ratio is of what is
added to it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bytecap import optimize
from bytecap.guards import native
from bytecap.hook import Dispatcher, Entry, entries


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop_weights, self.drop = nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        weights = self.drop_weights(torch.softmax(q @ k.transpose(-1, -2), dim=-1))
        return self.drop(self.out(weights @ v))


class Perceptron(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.down(self.act(self.up(x))))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width)
        self.norm2, self.perceptron = nn.LayerNorm(width), Perceptron(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.perceptron(self.norm2(x))


class Decoder(nn.Module):
    """GPT-2 in small: 17 layers have 209 parameters in 228 modules."""

    def __init__(self, layers: int, width: int = 16) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(64, width), nn.Embedding(32, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 64, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1])))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Perceptrons(nn.Module):
    """Small layers, one after the other: three are a policy network."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(4, 4), nn.Tanh())))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def add(a: Tensor, b: Tensor) -> Tensor:
    return a + b


@dataclass(frozen=True)
class Program:
    name: str
    target: Callable[..., Tensor]
    args: tuple[Tensor, ...]


def programs(layers: int) -> tuple[Program, ...]:
    return (
        Program("a + b", add, (torch.ones(2), torch.ones(2))),
        Program("3 small layers", Perceptrons(3), (torch.ones(1, 4),)),
        Program("24 small layers", Perceptrons(24), (torch.ones(1, 4),)),
        Program(f"decoder, {layers} layers", Decoder(layers), (torch.zeros(1, 8, dtype=torch.int64),)),
    )


def compile_ours(program: Program) -> Callable[..., Tensor]:
    ready = (program.target(*program.args).detach(),)
    return optimize(program.target, lambda capture, inputs: lambda *tensors: ready, fullgraph=True)


def compile_theirs(program: Program) -> Callable[..., Tensor]:
    ready = (program.target(*program.args).detach(),)

    def backend(graph: object, inputs: object) -> Callable[..., object]:
        return lambda *tensors: ready

    torch._dynamo.reset()
    return torch.compile(program.target, backend=backend, fullgraph=True, dynamic=False)


def median_us(call: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


def best_medians(
    calls: Mapping[str, Callable[..., object]], args: tuple[Any, ...], repeat: int, rounds: int
) -> dict[str, float]:
    """Microseconds of calls that take turns: the best of the rounds' medians of each."""
    best = dict.fromkeys(calls, float("inf"))
    for round_ in range(rounds):
        for name, call in calls.items():
            for _ in range(20 if round_ == 0 else 2):
                call(*args)
            best[name] = min(best[name], median_us(lambda call=call: call(*args), repeat))
    return best


def entry_of(compiled: Dispatcher) -> Entry:
    (code,) = compiled.owner.codes
    (entry,) = entries(code, compiled.owner)
    return entry


def measure(program: Program, repeat: int, rounds: int) -> tuple[float, float, float]:
    """(the same call of a function that does nothing, ours, theirs), best of the rounds."""
    ready = program.target(*program.args).detach()
    calls = {
        "nothing": lambda *args: ready,
        "ours": compile_ours(program),
        "theirs": compile_theirs(program),
    }
    best = best_medians(calls, program.args, repeat, rounds)
    owner = calls["ours"].owner
    if owner.misses != 1 or owner.rejected:
        raise SystemExit(f"{program.name}: guards failed in the benchmark")
    guard = entry_of(calls["ours"]).guard
    row = f"{len(entry_of(calls['ours']).guard.guards):7}{guard.input_count:7}{guard.replays:9}"
    print(
        f"{program.name:22}{row}{best['nothing']:10.2f}{best['ours']:9.2f}{best['theirs']:9.2f}"
        f"{(best['ours'] - best['nothing']) / (best['theirs'] - best['nothing']):8.3f}"
    )
    return best["nothing"], best["ours"], best["theirs"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=17)
    parser.add_argument("--repeat", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(f"torch {torch.__version__}; tensors read by {native.READING.tensors}")
    print(
        f"{'us a call':22}{'guards':>7}{'inputs':>7}{'replays':>9}{'nothing':>10}{'ours':>9}{'compile':>9}{'ratio':>8}"
    )
    for program in programs(options.layers):
        measure(program, options.repeat, options.rounds)


if __name__ == "__main__":
    main()
