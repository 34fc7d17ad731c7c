"""Branches and loops that data decides, without gradients: microseconds of a call, eager, torch.compile and stagefold.

    python benchmarks/control_flow.py [--device cuda] [--no-peer]

A program has `torch.cond` or `while_loop` of kernels among others. Times are medians of rounds of calls that follow one
another, with one synchronisation at the end of a round. "recorded": mode="reduce-overhead". Eager runs Python's own
`if` and `while`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops import while_loop

import stagefold

ROUNDS, CALLS = 9, 30
Case = Callable[..., Any]


def clipped(cond: Case, loop: Case, x: Tensor) -> Tensor:
    """A branch, as for steps that are skipped where numbers are not finite."""
    y = x.sin() * 2
    y = cond(y.isfinite().all(), lambda v: v / v.norm().clamp(min=1), torch.zeros_like, (y,))
    return y.softmax(-1) + x


def branches(cond: Case, loop: Case, x: Tensor) -> Tensor:
    """Eight branches, each on what the one before gave."""
    for _ in range(8):
        x = cond(x.mean() > 0, lambda v: v.sin() - 0.5, lambda v: v.cos() + 0.1, (x,))
    return x


def newton(cond: Case, loop: Case, x: Tensor) -> Tensor:
    """A cubic root by Newton's method, until no element moves: some twenty steps."""
    wanted = x.abs() + 1

    def step(y: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        z = y - (y * y * y - wanted) / (3 * y * y)
        return z, (z - y).abs().amax()

    return loop(lambda y, moved: moved > 1e-5, step, (wanted * 50, wanted.amax()))[0]


def plain_cond(predicate: Tensor, one: Case, other: Case, operands: tuple[Tensor, ...]) -> Tensor:
    return one(*operands) if predicate else other(*operands)


def plain_loop(condition: Case, body: Case, carried: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    while condition(*carried):
        carried = body(*carried)
    return carried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-peer", action="store_true")
    given = parser.parse_args()
    compilers = {"stagefold": stagefold.compile, "recorded": partial(stagefold.compile, mode="reduce-overhead")}
    if not given.no_peer:
        compilers |= {"torch.compile": torch.compile}
    x = torch.randn(64, 1024, device=given.device)
    print("| case | eager | " + " | ".join(compilers) + " |")
    with torch.no_grad():
        for program in (clipped, branches, newton):
            engines = {"eager": partial(program, plain_cond, plain_loop)}
            for name, compiler in compilers.items():
                engines[name] = compiler(lambda x, program=program: program(torch.cond, while_loop, x), fullgraph=True)
            found = measured(engines, x)
            print(
                f"| {program.__name__} | " + " | ".join(f"{seconds * 1e6:.0f}" for seconds in found) + " |", flush=True
            )


def measured(engines: dict[str, Case], x: Tensor) -> list[float]:
    """Seconds of a call of each; results are eager's."""
    expected, synchronize = engines["eager"](x), torch.cuda.synchronize if x.is_cuda else lambda: None
    times: dict[str, list[float]] = {name: [] for name in engines}
    for name in [*engines] * ROUNDS:
        run = engines[name]
        for _ in range(3):
            torch.testing.assert_close(run(x), expected, rtol=1e-4, atol=1e-4)
        synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            run(x)
        synchronize()
        times[name].append((time.perf_counter() - start) / CALLS)
    return [statistics.median(one) for one in times.values()]


if __name__ == "__main__":
    main()
