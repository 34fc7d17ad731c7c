"""Run bytecap's tests of hook and guards with the C extension built for the address and undefined-behaviour sanitizers.

    python tools/sanitize.py [PYTEST ARGUMENTS]

The package is copied to a temporary directory and its extension compiled there by gcc, with assertions on; Python's own
allocator is replaced by malloc, so that the sanitizer sees every object. Exit code: pytest's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "packages" / "bytecap"
TESTS = ("test_hook.py", "test_hook_lifetimes.py", "test_guards.py", "test_guards_replay.py", "test_marks.py",
         "test_guards_soundness.py", "test_surroundings.py", "test_leaks.py", "changes")  # fmt: skip
FLAGS = ("-shared", "-fPIC", "-std=c11", "-O1", "-g", "-fno-omit-frame-pointer", "-UNDEBUG",
         "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")  # fmt: skip


def build(directory: Path) -> None:
    """Copy the package and compile its extension."""
    target = directory / "bytecap"
    shutil.copytree(PACKAGE / "src" / "bytecap", target, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    sources = sorted(str(path) for path in (target / "_evalframe").glob("*.c"))
    output = target / f"_evalframe{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    subprocess.run(["gcc", *FLAGS, f"-I{include}", *sources, "-o", str(output)], check=True)


def library(name: str) -> str:
    """Where gcc has a sanitizer's run-time library."""
    found = subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def environment(directory: Path) -> dict[str, str]:
    paths = [str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter keeps what it has at exit
        "PYTHONMALLOC": "malloc",
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        build(Path(directory))
        names = sys.argv[1:] or [*(str(PACKAGE / "tests" / name) for name in TESTS), "-k", "not memory_is_flat"]
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *names]
        return subprocess.run(command, env=environment(Path(directory))).returncode


if __name__ == "__main__":
    raise SystemExit(main())
