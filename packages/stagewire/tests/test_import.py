"""What importing stagewire costs: never torch, never sympy."""

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
    blocked = "import sys; sys.modules.update(torch=None, numpy=None, hypothesis=None, sympy=None)\n"
    run(blocked + "\n".join(f"import {name}" for name in modules))


def test_symbolic_sizes_need_no_sympy() -> None:
    code = (
        "import sys; sys.modules['sympy'] = None\n"
        "from stagewire.expr import parse_expr\n"
        "print(parse_expr('Max(1, (n + 1) // 2) * 4 % 8'))"
    )
    assert run(code) == "4*((Max((n + 1)//(2), 1))%(2))\n"


def test_public_names() -> None:
    for name in ("Capture", "Grad", "Prim", "Loop", "Program", "encode", "decode", "save", "load", "Stage", "Dim"):
        assert hasattr(stagewire, name)
