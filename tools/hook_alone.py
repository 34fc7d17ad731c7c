"""Run the tests of bytecap's frame hook without torch, on the interpreter that runs this script.

    python tools/hook_alone.py [PYTEST ARGUMENTS]

Needs a C compiler, pytest and bytecode. The hook and its C extension are put into a package of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "packages" / "bytecap"


def build(directory: Path) -> None:
    """A package `bytecap` that holds the hook alone."""
    target = directory / "bytecap"
    target.mkdir()
    (target / "__init__.py").write_text("")
    shutil.copy(PACKAGE / "src" / "bytecap" / "hook.py", target)
    sources = sorted(str(path) for path in (PACKAGE / "src" / "bytecap" / "_evalframe").glob("*.c"))
    output = target / f"_evalframe{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ("-shared", "-fPIC", "-std=c11", "-O2", "-Wall", "-Wextra", f"-I{sysconfig.get_paths()['include']}")
    subprocess.run([os.environ.get("CC", "cc"), *flags, *sources, "-o", str(output)], check=True)


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        build(Path(directory))
        tests = sys.argv[1:] or [str(PACKAGE / "tests" / "test_hook.py")]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", *tests]
        return subprocess.run(command, env=os.environ | {"PYTHONPATH": directory}, cwd=directory).returncode


if __name__ == "__main__":
    raise SystemExit(main())
