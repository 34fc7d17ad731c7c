"""The target of examples/backends/llvm beside C++, on the demo's models.

    python -m examples.llvm_target [--models NAME ...] [--rounds 9]

Prints, for inference and for a training step, the milliseconds of this process's CPU that a call costs (median of
rounds in turn, one thread) under each target, their ratio, and the largest error against eager.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import torch

import stagefold
from examples.models import CASES, Case
from examples.worker import SEED, Program, largest_error
from integration_tests.plugins import ROOT, installed

TARGETS = ("cpp", "llvm")


def measured(case: Case, mode: str, rounds: int) -> tuple[dict[str, float], float]:
    """Milliseconds of a call by target, and the largest error of LLVM's."""
    torch.manual_seed(SEED)
    original = case.build().train(mode == "training")
    arguments = case.training() if mode == "training" else case.inference()
    programs = {name: Program(case, copy.deepcopy(original), None, mode) for name in ("eager", *TARGETS)}
    for name in TARGETS:
        options = {} if name == "cpp" else {"codegen.target": name}
        programs[name].call = stagefold.compile(programs[name].model, fullgraph=True, options=options)
    first = {name: program.step(arguments) for name, program in programs.items()}
    error = largest_error(first["eager"], first["llvm"])[0]  # before other steps change what the first one made
    seconds: dict[str, list[float]] = {name: [] for name in TARGETS}
    for _ in range(rounds + 1):
        for name in TARGETS:
            start = time.process_time()
            programs[name].step(arguments)
            seconds[name].append(time.process_time() - start)
    found = {name: statistics.median(each[1:]) * 1e3 for name, each in seconds.items()}
    return found, error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    ratios = []
    print(f"{'model':24} {'mode':10} {'C++ ms':>9} {'LLVM ms':>9} {'ratio':>6} {'error':>8}")
    with tempfile.TemporaryDirectory() as folder, installed(ROOT / "examples" / "backends" / "llvm", Path(folder)):
        for name in chosen.models:
            for mode in ("inference", "training"):
                found, error = measured(CASES[name], mode, chosen.rounds)
                ratios.append(found["llvm"] / found["cpp"])
                times = f"{found['cpp']:9.2f} {found['llvm']:9.2f} {ratios[-1]:6.2f}"
                print(f"{name:24} {mode:10} {times} {error:8.1e}", flush=True)
    print(f"geometric mean {math.exp(statistics.mean(map(math.log, ratios))):.2f}, greatest {max(ratios):.2f}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="torch")
    main()
