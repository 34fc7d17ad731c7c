"""Result types of ops by absint, beside torch's fake tensors, in one run.

    python benchmarks/abstract_types.py [--calls 2000]

Prints microseconds an op for each, with their ratio, and for the first op of a fresh process what it costs: seconds
and modules imported.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from absint import AbstractMode, AbstractTensor, contiguous

OPS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda x, w: x + x,
    "matmul": lambda x, w: x @ w,
    "softmax": lambda x, w: torch.softmax(x, -1),
    "view": lambda x, w: x.view(4, 2, 16),
    "sum": lambda x, w: x.sum(0),
    "layer_norm": lambda x, w: torch.layer_norm(x, (16,)),
}

FIRST = """
import sys, time, torch, absint
from torch._subclasses.fake_tensor import FakeTensorMode
start, known = time.perf_counter(), set(sys.modules)
with {mode} as mode:
    x = {tensor}
    torch.softmax(x + x, -1)
print(time.perf_counter() - start, len(set(sys.modules) - known))
"""
FIRST_OF = {
    "absint": dict(mode="absint.AbstractMode()",
                   tensor="absint.AbstractTensor(absint.contiguous((2, 3), torch.float32))"),
    "fake": dict(mode="FakeTensorMode()", tensor="mode.from_tensor(torch.ones(2, 3))"),
}  # fmt: skip


def microseconds(run: Callable[[], Any], calls: int) -> float:
    """The best of five rounds of `calls`, of this process's CPU."""
    rounds = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(calls):
            run()
        rounds.append((time.process_time() - start) / calls * 1e6)
    return min(rounds)


def first_op(name: str) -> tuple[float, int]:
    """Seconds and imported modules of the first op in a fresh process."""
    command = [sys.executable, "-c", FIRST.format(**FIRST_OF[name])]
    seconds, modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds), int(modules)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    calls = parser.parse_args().calls
    shapes = (8, 16), (16, 16)
    ours = [AbstractTensor(contiguous(shape, torch.float32)) for shape in shapes]
    with FakeTensorMode() as fake:
        theirs = [fake.from_tensor(torch.ones(shape)) for shape in shapes]
    print(f"{'us an op':12}{'absint':>8}{'fake':>8}{'ratio':>8}")
    for name, op in OPS.items():
        with AbstractMode():
            mine = microseconds(lambda op=op: op(*ours), calls)
        with fake:
            peer = microseconds(lambda op=op: op(*theirs), calls)
        print(f"{name:12}{mine:8.1f}{peer:8.1f}{mine / peer:8.2f}")
    for name in FIRST_OF:
        seconds, modules = first_op(name)
        print(f"first op, {name}: {seconds:.2f} s, {modules} modules imported")


if __name__ == "__main__":
    main()
