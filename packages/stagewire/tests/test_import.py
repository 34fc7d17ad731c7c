"""What importing stagewire costs: never torch, and sympy only for symbolic sizes."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import stagewire


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_modules_import_without_torch_and_without_hypothesis() -> None:
    modules = [
        module.name
        for module in pkgutil.walk_packages(stagewire.__path__, "stagewire.")
        if not module.name.startswith("stagewire.testing")
    ]
    assert "stagewire.verify.loops" in modules
    blocked = "import sys; sys.modules.update(torch=None, numpy=None, hypothesis=None)\n"
    run(blocked + "\n".join(f"import {name}" for name in modules))


def test_static_sizes_do_not_pay_for_sympy() -> None:
    code = (
        "import sys, stagewire, stagewire.printer, stagewire.parser, stagewire.verify, stagewire.digest\n"
        "from stagewire.types import contiguous\n"
        "str(contiguous('float32', (2, 3)))\n"
        "print('sympy' in sys.modules)"
    )
    assert run(code) == "False\n"


def test_public_names() -> None:
    for name in ("Capture", "Grad", "Prim", "Loop", "Program", "encode", "decode", "save", "load", "Stage", "Dim"):
        assert hasattr(stagewire, name)
