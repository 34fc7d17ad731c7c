"""What is alive at the peak of a step's memory, by torch's own record of its allocator, on one NVIDIA GPU.

    python benchmarks/peak_memory.py [CASE ...] [--dtype bfloat16] [--engines ours torch] [--top 40]

Cases are those of `gpu.py`, measured in the same way: memory beside what was taken before the step. A row is one
allocation: its size, when it was made and freed (a count of events; peaks are marked), and what called the allocator.
"""

from __future__ import annotations

import argparse
import copy
import gc
from typing import Any

import gpu
import torch
from torch import nn

import stagefold

ENGINES = {"eager": lambda f: f, "torch": torch.compile, "ours": stagefold.compile}
DULL = ("c10::", "torch::unwind", "THP", "Py", "_Py", "torch::CapturedTraceback", "at::detail::", "(anonymous", "??")
"""Frames that every allocation has."""


def recorded(step: Any) -> tuple[list[dict[str, Any]], int]:
    """The allocator's events of one step, and the peak that it counted itself."""
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda.memory._record_memory_history("all", context="alloc", stacks="all", max_entries=1_000_000)
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(None)
    return events, peak


def caller(event: dict[str, Any]) -> str:
    """The frames of an allocation that say whose it is: of C++ and of Python, the innermost first."""
    frames = [frame for frame in event.get("frames", ()) if not frame["name"].startswith(DULL)]
    native = [frame["name"].partition("(")[0][-60:] for frame in frames if not frame["filename"].endswith(".py")]
    python = [
        f"{frame['filename'].rpartition('/')[2]}:{frame['line']} {frame['name']}"
        for frame in frames
        if frame["filename"].endswith(".py")
    ]
    return " < ".join((*native[:5], "|", *python[:3]))


def report(events: list[dict[str, Any]], peak: int, top: int) -> None:
    """Print what is alive where most is."""
    alive: dict[int, int] = {}
    made: dict[int, tuple[int, int | None]] = {}
    total = most = at = 0
    freed_before = 0
    for number, event in enumerate(events):
        if event["action"] == "alloc":
            alive[event["addr"]] = number
            made[number] = (event["size"], None)
            total += event["size"]
            if total > most:
                most, at = total, number
        elif event["action"] == "free_completed":
            start = alive.pop(event["addr"], None)
            if start is None:  # taken before the step
                freed_before += event["size"]
                total -= event["size"]
            else:
                made[start] = (made[start][0], number)
                total -= event["size"]
    print(f"  peak {peak / 2**20:.2f} MiB, by events {most / 2**20:.2f} at {at} of {len(events)}")
    print(f"  freed in the step though taken before it: {freed_before / 2**20:.2f} MiB")
    rows = [(size, start, end) for start, (size, end) in made.items() if start <= at and (end is None or end > at)]
    for size, start, end in sorted(rows, key=lambda row: (-row[0], row[1]))[:top]:
        print(f"  {size / 2**20:9.3f} {start:5d}..{'' if end is None else end:<5} {caller(events[start])}")
    print(f"  {len(rows)} in all; made about the peak:", flush=True)
    for number in range(max(0, at - 4), min(len(events), at + 5)):
        event = events[number]
        mark = "=>" if number == at else "  "
        print(f"  {mark} {number} {event['action']} {event['size'] / 2**20:.3f} {caller(event)[:200]}")


def run(name: str, dtype: torch.dtype, engine: str, top: int) -> None:
    """One case of one engine; the case is made as `gpu.run` makes it."""
    one = gpu.CASES[name]
    torch.manual_seed(0)
    module, inputs = one.make()
    given: list[torch.Tensor] = [x.cuda().to(dtype) if x.is_floating_point() else x.cuda() for x in inputs]
    needs = one.training and not isinstance(module, nn.Module)
    if isinstance(module, nn.Module):
        module = copy.deepcopy(module).cuda().to(dtype).train(one.training)
        needs = one.training and given[0].is_floating_point()
    given = [x.requires_grad_(needs and x.is_floating_point()) for x in given]
    step = gpu.stepper(ENGINES[engine](module), tuple(given), one.training)
    for _ in range(4):
        step()
    print(f"{name}, {engine}")
    report(*recorded(step), top)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--engines", nargs="*", default=["ours", "torch"], choices=tuple(ENGINES))
    parser.add_argument("--top", type=int, default=40)
    arguments = parser.parse_args()
    for name in arguments.cases:
        for engine in arguments.engines:
            torch._dynamo.reset()
            gc.collect()
            torch.cuda.empty_cache()
            run(name, getattr(torch, arguments.dtype), engine, arguments.top)


if __name__ == "__main__":
    main()
