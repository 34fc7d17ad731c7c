"""Inference with `options={"freeze": True}` beside eager and the default options, in one process, in turns.

    python benchmarks/frozen.py [--page] [NAME ...]

NAME: parts of the names of cases of `models.py` (default: convolution networks at batch 1 and 8). One thread, processor
time, median over rounds of the ratio within a round; `--page` writes the section of docs/performance.md.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from beside.case import Case
from beside.page import geometric_mean, write_section
from beside.run import ROOT, processor
from beside.turns import in_turns
from models import CASES

import stagefold

DEFAULT = tuple(
    f"{name}, inference, {dtype}, batch {batch}"
    for dtype, batch in (("f32", 1), ("f32", 8), ("bf16", 8))
    for name in ("ResNet-18", "ResNet-50", "MobileNet-like", "ConvNeXt-like", "UNet")
)
HEADER = "| case | eager us | stagefold | frozen | frozen over stagefold |\n|---|---:|---:|---:|---:|"


def ratios(case: Case) -> tuple[float, float, float]:
    """Microseconds of eager, and the speeds of both over it."""
    torch.manual_seed(0)
    program = case.build()
    frozen = stagefold.compile(program.call, options={"freeze": True})
    calls = [program.call, stagefold.compile(program.call), frozen]
    seconds, speeds = in_turns([partial(program.step, call) for call in calls])
    return seconds * 1e6, speeds[0], speeds[1]


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
