"""Machine code is unloaded with the compiled function that runs it."""

from __future__ import annotations

import gc
from pathlib import Path

import torch

import stagefold


def mapped(cache: Path) -> int:
    """How many shared libraries of the cache are mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split(maxsplit=5)[-1] for line in lines if str(cache) in line})


def run(number: int) -> None:
    """Compile, run and drop a function of its own, with its gradient; big enough for several threads."""
    compiled = stagefold.compile(lambda x: (x.sin() * (number + 0.5)).sum(), fullgraph=True)
    x = torch.full((200_000,), 0.5, requires_grad=True)
    compiled(x).backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.full_like(x, 0.5).cos() * (number + 0.5))


def test_dropped_functions_leave_no_machine_code(code_cache: Path) -> None:
    for number in (1, 2):  # the native executor stays
        run(number)
    stagefold.reset()
    gc.collect()
    before = mapped(code_cache)
    for number in range(3, 9):
        run(number)
        stagefold.reset()
    gc.collect()
    assert mapped(code_cache) <= before
    run(1)  # as ever
