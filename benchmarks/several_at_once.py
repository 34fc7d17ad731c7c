"""Cases of a benchmark in several processes at once: all compile; while one measures the others are stopped."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

_groups: Any = ()
"""The process groups of the benchmark (0: has ended), in memory that its processes share; none where it runs alone."""
_lock_file: Path | None = None


@contextmanager
def alone() -> Iterator[None]:
    """Every other process of this benchmark, and the workers of its compiler, are stopped while this one measures."""
    if _lock_file is None:
        yield
        return
    with _lock_file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        others = [group for group in _groups if group != os.getpid()]
        for group in others:
            _signal(group, signal.SIGSTOP)
        time.sleep(0.05)  # what they have launched on a GPU ends
        try:
            yield
        finally:
            for group in others:
                _signal(group, signal.SIGCONT)


def run_all(run: Callable[[str], None], cases: Sequence[str], processes: int) -> None:
    """`run(case)` for all cases, each in the first of so many processes that is free. Both are importable."""
    context = multiprocessing.get_context("spawn")
    waiting = context.Queue()
    for case in [*cases, *[None] * processes]:
        waiting.put(case)
    groups = context.Array("i", processes)
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder) / "measures"
        workers = [
            context.Process(target=_work, args=(run, waiting, groups, place, lock)) for place in range(processes)
        ]
        for worker in workers:
            worker.start()
        try:
            left = {worker.sentinel: worker for worker in workers}
            while left:
                for sentinel in wait(list(left)):
                    ended = left.pop(sentinel)
                    ended.join()
                    if ended.exitcode:
                        print(f"  a process ended with {ended.exitcode}: its case is missing", flush=True)
                        for group in groups:
                            _signal(group, signal.SIGCONT)
        finally:
            for group in groups:
                _signal(group, signal.SIGKILL)


def _work(run: Callable[[str], None], waiting: Any, groups: Any, place: int, lock: Path) -> None:
    global _groups, _lock_file
    os.setpgid(0, 0)
    groups[place] = os.getpid()
    _groups, _lock_file = groups, lock
    while (case := waiting.get()) is not None:
        run(case)
    groups[place] = 0


def _signal(group: int, number: int) -> None:
    if group:
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return  # it has ended
