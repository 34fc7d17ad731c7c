"""What a graph break costs, beside torch.compile, in one run.

    python benchmarks/graph_breaks.py [--repeat 200] [--rounds 7] [--passes 10]

Each program is captured by both. The compiled graphs are replaced by functions that return ready tensors, so that the
time of a call is guards, dispatch, the state that goes over the break, and what runs plain there. Ours, theirs and the
plain function take turns; the best of the rounds' medians is printed, in microseconds. "plain" is the same control flow
on ready tensors, and the ratio is of what is added to it. torch.compile leaves a function whose loop breaks to the
interpreter and compiles what it calls; the program "loop of calls" has its break there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from guards import best_medians
from torch import Tensor, nn

from bytecap import executor, optimize


def after_item(x: Tensor, passes: int) -> Tensor:
    y = x * 2 + 1
    if y.sum().item() > 0:
        y = y * 3 + 1
    return y


def after_check(x: Tensor, passes: int) -> Tensor:
    y = x * 2 + 1
    assert (y > 0).all()
    return y * 3 + 1


def while_loop(x: Tensor, passes: int) -> Tensor:
    left = passes
    while left > 0:
        x = x * 0.5 + 1
        if x.sum() > 0:
            x = x * 0.25 + 1
        left -= 1
    return x


def for_loop(x: Tensor, passes: int) -> Tensor:
    for _ in range(passes):
        x = x * 0.5 + 1
        if x.sum() > 0:
            x = x * 0.25 + 1
    return x


def step(x: Tensor) -> Tensor:
    x = x * 0.5 + 1
    if x.sum() > 0:
        x = x * 0.25 + 1
    return x


def loop_of_calls(x: Tensor, passes: int) -> Tensor:
    for _ in range(passes):
        x = step(x)
    return x


class Layers(nn.Module):
    """Layers that a draw may skip, as those of M2M100 in training."""

    def __init__(self, passes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(passes))

    def forward(self, x: Tensor, passes: int) -> Tensor:
        for layer in self.layers:
            drawn = x.mean() + 1
            if drawn > -1000:
                x = layer(x)
        return x


# The same control flow on ready tensors.


def plain_item(x: Tensor, passes: int) -> Tensor:
    if READY.item() > 0:
        pass
    return x


def plain_check(x: Tensor, passes: int) -> Tensor:
    assert READY
    return x


def plain_loop(x: Tensor, passes: int) -> Tensor:
    for _ in range(passes):
        if READY:
            pass
    return x


READY = torch.tensor(1.0)


@dataclass(frozen=True)
class Program:
    name: str
    target: Callable[..., Tensor]
    plain: Callable[..., Tensor]


def programs(passes: int) -> tuple[Program, ...]:
    return (
        Program("branch on item()", after_item, plain_item),
        Program("assert on data", after_check, plain_check),
        Program("while loop", while_loop, plain_loop),
        Program("for loop", for_loop, plain_loop),
        Program("loop of calls", loop_of_calls, plain_loop),
        Program("loop over layers", Layers(passes), plain_loop),
    )


def ready(graph: Callable[..., Any]) -> Callable[..., Any]:
    """The graph, run once and then no more."""
    results: list[Any] = []

    def call(*inputs: Any) -> Any:
        if not results:
            results.append(graph(*inputs))
        return results[0]

    return call


def measure(program: Program, passes: int, repeat: int, rounds: int) -> dict[str, float]:
    """Microseconds of the plain function, ours, theirs: best of the rounds."""
    torch._dynamo.reset()
    calls = {
        "plain": program.plain,
        "ours": optimize(program.target, lambda capture, inputs: ready(executor(capture))),
        "theirs": torch.compile(program.target, backend=lambda graph, inputs: ready(graph), dynamic=False),
    }
    return best_medians(calls, (torch.ones(4), passes), repeat, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    print(f"torch {torch.__version__}; {options.passes} passes through a loop; microseconds")
    print(f"{'':20}{'plain':>8}{'ours':>8}{'theirs':>8}{'ratio':>8}")
    for program in programs(options.passes):
        best = measure(program, options.passes, options.repeat, options.rounds)
        plain, ours, theirs = best.values()
        print(f"{program.name:20}{plain:8.2f}{ours:8.2f}{theirs:8.2f}{(ours - plain) / (theirs - plain):8.2f}")


if __name__ == "__main__":
    main()
