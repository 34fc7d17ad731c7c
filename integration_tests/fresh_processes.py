"""Processes of their own for scripts: each is forked off a server that has imported torch and stagefold, and done
nothing else, so that none takes the seconds which that import takes."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

FRESH = multiprocessing.get_context("forkserver")
FRESH.set_forkserver_preload(["torch", "torch.testing", "stagefold"])


def run_script(
    script: str, environment: Mapping[str, str], *arguments: str, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """As `python -c script arguments`, in an environment and a directory; its output is kept."""
    return _run(_execute, (script, *arguments), environment, directory)


def run_module(name: str, environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """As `python -m name arguments`, in an environment; its output is kept."""
    return _run(_execute_module, (name, *arguments), environment, None)


def _run(
    execute: Callable[[str], object], command: Sequence[str], environment: Mapping[str, str], directory: Path | None
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as place:
        said = [f"{place}/out", f"{place}/err"]
        process = FRESH.Process(target=_begin, args=(execute, tuple(command), dict(environment), directory, said))
        process.start()
        process.join()
        out, err = (Path(path).read_text() for path in said)
        assert process.exitcode is not None
        return subprocess.CompletedProcess(command, process.exitcode, out, err)


def _begin(
    execute: Callable[[str], object],
    command: tuple[str, ...],
    environment: dict[str, str],
    directory: Path | None,
    said: list[str],
) -> None:
    for number, path in enumerate(said, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    if directory is not None:
        os.chdir(directory)
    sys.argv[:] = ["-c" if execute is _execute else command[0], *command[1:]]
    execute(command[0])


def _execute(script: str) -> None:
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(script, "<string>", "exec"), main.__dict__)


def _execute_module(name: str) -> None:
    runpy.run_module(name, run_name="__main__", alter_sys=True)
