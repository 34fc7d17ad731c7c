"""A sample of `tools/sanitize_kernels.py`: generated C++ under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parent.parent / "tools" / "sanitize_kernels.py"


def has_sanitizers() -> bool:
    if shutil.which("g++") is None:
        return False
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    return Path(found).is_absolute()  # else it is the name alone


@pytest.mark.skipif(not has_sanitizers(), reason="g++ has no libasan.so")
def test_kernels_touch_their_own_memory_alone() -> None:
    command = [sys.executable, str(TOOL), "--examples", "1", "--isa", "x86-64-v2", "--programs", "elements by index"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "x86-64-v2: 16 calls of 1 programs" in done.stdout
