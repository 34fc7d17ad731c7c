"""Writes docs/features.md: what becomes of small programs here and under torch.compile, tried in this run.

    python -m tools.features [--device cuda] [--out docs/features.md]

torch.compile runs with backend="aot_eager": all of it but the kernels. `integration_tests/test_features.py` runs the
same programs, and says which outcome each has to have.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from integration_tests.features.probe import outcome_of
from integration_tests.test_features import PROBES, compiled

HEAD = """# Features

`python -m tools.features` writes this page; `integration_tests/test_features.py` runs every row. Each program is called
with inputs of two sizes and compared with eager: results, what it writes, and gradients where it trains. "one graph":
under `fullgraph=True`; "with breaks": without. torch.compile runs with its back end "aot_eager".

"""


ON_A_GPU = """The same on a GPU ({}, torch {}): `--device cuda`. Programs have no outcome that make tensors of
their own on the CPU, or mean the CPU by name: eager itself refuses those. "ends the process": by a segmentation fault.

"""


def theirs(program: Callable[..., Any], fullgraph: bool) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(program, backend="aot_eager", fullgraph=fullgraph)


COMPILERS: dict[str, Callable[..., Any]] = {"stagefold": compiled, "torch.compile": theirs}


def outcome_by(name: str, place: int, device: str) -> str:
    """What a compiler makes of the probe with this number."""
    logging.disable(logging.ERROR)
    return outcome_of(PROBES[place], COMPILERS[name], device)[0]


class Worker:
    """A process in which probes are tried, and a new one once a probe has ended it."""

    def __init__(self) -> None:
        self.process = self._start()

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def outcome(self, *given: Any) -> str:
        try:
            return self.process.submit(outcome_by, *given).result()
        except BrokenProcessPool:
            self.process = self._start()
            return "ends the process"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device, is_page = given.device, given.device == "cpu"
    out = given.out or Path("docs/features.md" if is_page else "docs/features_gpu.md")
    counts: dict[str, Counter[str]] = {name: Counter() for name in COMPILERS}
    lines, worker = [], Worker()
    for area, probes in groupby(enumerate(PROBES), lambda probe: probe[1].area):
        lines += [f"\n## {area}\n", "| program | trains | stagefold | torch.compile |", "|---|---|---|---|"]
        for place, probe in probes:
            row = {}
            for name in COMPILERS:
                row[name] = worker.outcome(name, place, device)
                counts[name][row[name]] += 1
            if "none" in row.values():
                row = dict.fromkeys(row, "")
            lines.append(f"| {probe.name} | {'yes' if probe.trains else ''} | {' | '.join(row.values())} |")
            print(lines[-1], flush=True)
    totals = "\n".join(
        f"* {name}: {', '.join(f'{count} {outcome}' for outcome, count in sorted(found.items()))}"
        for name, found in counts.items()
    )
    head = HEAD if is_page else f"{HEAD}{ON_A_GPU.format(torch.cuda.get_device_name(), torch.__version__)}"
    out.write_text(f"{head}{totals}\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
