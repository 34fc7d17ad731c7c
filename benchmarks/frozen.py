"""Inference with `options={"freeze": True}` beside eager and the default options, in one process, in turns.

    python benchmarks/frozen.py [--page] [NAME ...]

NAME: parts of the names of cases of `models.py` (default: convolution networks at batch 1 and 8). One thread, processor
time, median over rounds of the ratio within a round; `--page` writes the section of docs/performance.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from beside.case import Case
from beside.page import geometric_mean, write_section
from beside.run import ROOT, processor
from models import CASES

import stagefold

DEFAULT = tuple(
    f"{name}, inference, {dtype}, batch {batch}"
    for dtype, batch in (("f32", 1), ("f32", 8), ("bf16", 8))
    for name in ("ResNet-18", "ResNet-50", "MobileNet-like", "ConvNeXt-like", "UNet")
)
HEADER = "| case | eager us | stagefold | frozen | frozen over stagefold |\n|---|---:|---:|---:|---:|"


def ratios(case: Case, rounds: int = 9) -> tuple[float, float, float]:
    """Microseconds of eager, and the speeds of both over it."""
    torch.manual_seed(0)
    program = case.build()
    calls: list[Callable[..., Any]] = [
        program.call,
        stagefold.compile(program.call),
        stagefold.compile(program.call, options={"freeze": True}),
    ]
    for call in calls * 2:
        program.step(call)
    times: list[list[float]] = [[], [], []]
    start = time.process_time()
    program.step(calls[0])
    repeat = max(1, round(0.03 / max(time.process_time() - start, 1e-6)))
    for _ in range(rounds):
        for own, call in zip(times, calls, strict=True):
            start = time.process_time()
            for _ in range(repeat):
                program.step(call)
            own.append((time.process_time() - start) / repeat)
    over = [statistics.median(base / mine for base, mine in zip(times[0], own, strict=True)) for own in times[1:]]
    return statistics.median(times[0]) * 1e6, over[0], over[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--page", action="store_true", help="write docs/performance.md")
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [case for case in CASES if any(part in case.name for part in given.cases or DEFAULT)]
    lines, gains = [HEADER], []
    for case in chosen:
        microseconds, plain, frozen = ratios(case)
        gains.append(frozen)
        lines.append(f"| {case.name} | {microseconds:.0f} | {plain:.2f} | {frozen:.2f} | {frozen / plain:.2f} |")
        print(lines[-1], flush=True)
    lines += ["", f"{len(gains)} cases. Geometric mean: speed of frozen programs {geometric_mean(gains):.2f}."]
    print(lines[-1])
    if given.page:
        setting = f"torch {torch.__version__}, 1 thread, {processor()}"
        page, command = ROOT / "docs" / "performance.md", "python benchmarks/frozen.py --page"
        write_section(page, "Frozen inference", command, setting, "\n".join(lines))


if __name__ == "__main__":
    main()
