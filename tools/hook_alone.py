"""Run the tests of bytecap's frame hook and drivers without torch, on the interpreter that runs this script.

    python tools/hook_alone.py [PYTEST ARGUMENTS]

Needs a C compiler, pytest, bytecode and msgspec (for stagewire). The hook with its C extension, and what joins the
segments of a frame that breaks, are put into a package of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

PARTS = ("hook", "bytecode", "breaks", "context_types", "errors", "testing/stack_depth")
TESTS = ("test_hook.py", "breaks/test_bodies.py")
PACKAGES = Path(__file__).resolve().parent.parent / "packages"
PACKAGE = PACKAGES / "bytecap"


def build(directory: Path) -> None:
    """A package `bytecap` that holds the parts alone."""
    target = directory / "bytecap"
    for package in (target, target / "testing"):
        package.mkdir()
        (package / "__init__.py").write_text("")
    for name in PARTS:
        part = PACKAGE / "src" / "bytecap" / name
        if part.is_dir():
            shutil.copytree(part, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(part.with_suffix(".py"), (target / name).with_suffix(".py"))
    sources = sorted(str(path) for path in (PACKAGE / "src" / "bytecap" / "_evalframe").glob("*.c"))
    output = target / f"_evalframe{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ("-shared", "-fPIC", "-std=c11", "-O2", "-Wall", "-Wextra", f"-I{sysconfig.get_paths()['include']}")
    subprocess.run([os.environ.get("CC", "cc"), *flags, *sources, "-o", str(output)], check=True)


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        build(Path(directory))
        shutil.copy(PACKAGE / "tests" / "conftest.py", Path(directory) / "stacks.py")
        tests = sys.argv[1:] or [str(PACKAGE / "tests" / name) for name in TESTS]
        options = ["-q", "-p", "no:cacheprovider", "--noconftest", "-p", "stacks"]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        path = os.pathsep.join((directory, str(PACKAGES / "stagewire" / "src")))
        return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, cwd=directory).returncode


if __name__ == "__main__":
    raise SystemExit(main())
