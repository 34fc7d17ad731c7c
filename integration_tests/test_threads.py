"""Threads that share compiled functions: locks, first calls, recompiles, resets, backwards, exceptions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS = int(os.environ.get("THREAD_ROUNDS", "2"))


@pytest.mark.parametrize("program", ["lock", "crowd"])
def test_many_threads(program):
    """In a process of its own, which says where its threads are if it hangs."""
    command = [sys.executable, "-m", "integration_tests.thread_programs", program, str(ROUNDS)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120 + 300 * ROUNDS, cwd=Path(__file__).parents[1]
    )
    assert (done.returncode, done.stdout) == (0, f"{program}: {ROUNDS} rounds\n"), done.stderr[-4000:]
