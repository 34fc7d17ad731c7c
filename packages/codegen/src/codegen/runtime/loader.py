"""Loading C++ units: machine code from the cache or the compiler, bound to an executor."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from codegen.bound import Bound
from codegen.cpp.machine_code import compile_sources, load_code
from codegen.cpp.target import Target
from codegen.errors import CompilerFault, NoCompiler, SlowExecutor
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
    loads: dict[str, Callable[[Path], Any]] = {unit.source: Library for unit in units if unit.source}
    if executor == "fast":
        loads[executor_source()] = load_machine
    libraries = load_code(loads, directory, target)
    machine = libraries.pop(executor_source()) if executor == "fast" else None
    return tuple(Bound(_run(unit, libraries.get(unit.source), machine), lambda unit=unit: unit) for unit in units)  # type: ignore[misc]


def _run(unit: Unit, library: Library | None, machine: Machine | None) -> Any:
    return PythonWrapper(unit, library) if machine is None else bind_native(unit, library, machine)


def machine_for(directory: Path, driver: Driver) -> Machine | None:
    """The native executor for a CUDA device; None, with a warning, where there is no compiler to make it."""
    try:
        (machine,) = load_code({executor_source(): partial(load_machine, driver=driver)}, directory).values()
    except NoCompiler as error:
        message = f"the native executor cannot be made: {error.message}; programs run step by step"
        warnings.warn(message, SlowExecutor, stacklevel=2)
        return None
    return machine  # type: ignore[no-any-return]


@lru_cache
def prepare_machine(directory: Path) -> None:
    """Begin to compile the native executor, if it is not there, beside what this thread does; once."""

    def compile_it() -> None:
        with contextlib.suppress(NoCompiler, CompilerFault):  # which `machine_for` says
            compile_sources([executor_source()], directory)

    threading.Thread(target=compile_it, daemon=True).start()
