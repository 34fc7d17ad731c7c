"""What a compiled function holds and does not need: machine code once it is dropped, memory of larger runs."""

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


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_of_a_larger_version_is_given_back() -> None:
    """One large run, then small ones: they run another version of the function."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sort(torch.sort(x.sin())[0].cos())[0].sum()

    compiled = stagefold.compile(function, fullgraph=True)
    small = torch.linspace(0, 1, 100)
    other = stagefold.compile(lambda x: function(x) + 1, fullgraph=True)
    for size in (100, 90):  # what torch and the compiler load at first
        other(small[:size])
    before = resident()
    compiled(torch.linspace(0, 1, 20_000_000))
    for _ in range(20):
        torch.testing.assert_close(compiled(small), function(small))
    assert resident() - before < 40_000_000
