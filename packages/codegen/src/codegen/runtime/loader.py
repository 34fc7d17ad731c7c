"""Loading C++ units: machine code from the cache or the compiler, bound to an executor."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from codegen.bound import Bound
from codegen.cpp.compiler import compile_sources
from codegen.cpp.target import Target
from codegen.errors import NoCompiler, SlowExecutor
from codegen.runtime.cuda_driver import Driver
from codegen.runtime.library import Library
from codegen.runtime.native import Machine, bind_native, executor_source, load_machine
from codegen.runtime.python_wrapper import PythonWrapper
from stagewire.program import Unit


def load_cpp(units: Sequence[Unit], directory: Path, executor: str) -> tuple[Bound, ...]:
    """One callable for each unit; their sources compile at the same time, those of each target."""
    groups = by_target(units)
    loaded = {
        number: bound
        for target, numbers in groups.items()
        for number, bound in zip(numbers, _load([units[n] for n in numbers], directory, executor, target), strict=True)
    }
    return tuple(loaded[number] for number in range(len(units)))


def by_target(units: Sequence[Unit]) -> dict[Target, list[int]]:
    """The numbers of the units that are compiled for each target."""
    groups: dict[Target, list[int]] = {}
    for number, unit in enumerate(units):
        groups.setdefault(Target(unit.isa, unit.sanitize), []).append(number)
    return groups


def _load(units: Sequence[Unit], directory: Path, executor: str, target: Target) -> tuple[Bound, ...]:
    sources = list(dict.fromkeys(unit.source for unit in units if unit.source))
    if executor == "fast":
        sources.append(executor_source())
    paths = dict(zip(sources, compile_sources(sources, directory, target), strict=True))
    machine = load_machine(paths.pop(executor_source())) if executor == "fast" else None
    libraries = {source: Library(path) for source, path in paths.items()}
    return tuple(Bound(_run(unit, libraries.get(unit.source), machine), lambda unit=unit: unit) for unit in units)  # type: ignore[misc]


def _run(unit: Unit, library: Library | None, machine: Machine | None) -> Any:
    return PythonWrapper(unit, library) if machine is None else bind_native(unit, library, machine)


def machine_for(directory: Path, driver: Driver) -> Machine | None:
    """The native executor for a CUDA device; None, with a warning, where there is no compiler to make it."""
    try:
        (path,) = compile_sources([executor_source()], directory)
    except NoCompiler as error:
        message = f"the native executor cannot be made: {error.message}; programs run step by step"
        warnings.warn(message, SlowExecutor, stacklevel=2)
        return None
    return load_machine(path, driver)


@lru_cache
def prepare_machine(directory: Path) -> None:
    """Begin to compile the native executor, if it is not there, beside what this thread does; once."""

    def compile_it() -> None:
        with contextlib.suppress(NoCompiler):  # which `machine_for` says
            compile_sources([executor_source()], directory)

    threading.Thread(target=compile_it, daemon=True).start()
