"""Loading C++ units: machine code from the cache or the compiler, bound to an executor."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from codegen.cpp.compiler import compile_sources
from codegen.runtime.library import Library
from codegen.runtime.native import bind_native, executor_source, load_machine
from codegen.runtime.python_wrapper import PythonWrapper
from stagewire.program import Unit


def load_cpp(units: Sequence[Unit], cache_dir: str | Path | None, executor: str) -> tuple[Any, ...]:
    """One callable for each unit; their sources compile at the same time."""
    directory = Path(cache_dir) if cache_dir is not None else _temporary()
    sources = list(dict.fromkeys(unit.source for unit in units if unit.source))
    if executor == "fast":
        sources.append(executor_source())
    paths = dict(zip(sources, compile_sources(sources, directory), strict=True))
    machine = load_machine(paths.pop(executor_source())) if executor == "fast" else None
    libraries = {source: Library(path) for source, path in paths.items()}
    if machine is None:
        return tuple(PythonWrapper(unit, libraries.get(unit.source)) for unit in units)
    return tuple(bind_native(unit, libraries.get(unit.source), machine) for unit in units)


@lru_cache(maxsize=1)
def _temporary() -> Path:
    """A directory that ends with the process."""
    path = Path(tempfile.mkdtemp(prefix="codegen-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
