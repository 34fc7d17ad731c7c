"""Loading Triton units: kernels become machine code for the device, and the native executor launches them.

Kernels on memory of the CPU are functions of a shared library. Units of several GPUs are cut in partitions of one. Runs
of a unit with symbolic sizes in which an index takes more than 32 bits are step by step, each kernel launched by
Triton; so are all runs in Triton's interpreter (TRITON_INTERPRET=1 in the environment when units are loaded), which
works on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, cached_property, partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import torch

from codegen.choices import Bound, chosen, load_in_groups
from codegen.cpp.machine_code import load_code
from codegen.runtime.arguments import Symbols, sizes
from codegen.runtime.device_partitions import InTurns, partitions_of
from codegen.runtime.encode import encode
from codegen.runtime.library import Driver, Library, driver_of
from codegen.runtime.memory_kinds import single_device, stated
from codegen.runtime.native import Machine, machine_for, make_native, target_of
from codegen.runtime.python_wrapper import PythonWrapper, from_address
from codegen.runtime.required_cubins import Multiples, required_cubins, useful
from codegen.runtime.tuning import Bench, by_precision, make_choices, tf32_allowed, with_tf32
from codegen.triton.compiling import module_of
from codegen.triton.cubins import Cubin, Needed, cubins_of, is_early
from codegen.triton.emit import LARGEST_32
from stagewire.expr import Dim, symbol
from stagewire.program import KernelInfo, Launch, Unit
from stagewire.types import extent, reach

NOTHING: Mapping[str, Cubin] = MappingProxyType({})


class Load(NamedTuple):
    """A unit without choices that is to be loaded. slow: runs it where the native executor does not.

    known: machine code of some of its kernels.
    """

    unit: Unit
    slow: Any
    library: Library | None
    known: Mapping[str, Cubin] = NOTHING

    def needed(self, multiples: Multiples) -> Needed:
        """The machine code for sizes that are such multiples; what is known is for all sizes."""
        kernels = required_cubins(self.unit, multiples)
        if not self.known or not multiples:
            return Needed(self.unit.source, kernels, self.known)
        plain = {one.info.name: one for one in required_cubins(self.unit)}
        changed = {one.info.name for one in kernels if one != plain[one.info.name]}
        return Needed(self.unit.source, kernels, {name: one for name, one in self.known.items() if name not in changed})


def step_by_step(unit: Unit, library: Library | None) -> Load:
    """A unit as it runs without the native executor; the library holds its kernels on memory of the CPU."""
    on_cpu = library.addresses(unit.host_kernels).items() if library else ()
    return Load(unit, TritonWrapper(unit, {name: from_address(place, library) for name, place in on_cpu}), library)


def load_triton(units: Sequence[Unit], root: Path, executor: str) -> tuple[Bound, ...]:
    """One callable for each unit; units of several GPUs run in turns."""
    plain = [chosen(unit, {}) for unit in units]
    parts = [partitions_of(one) if executor == "fast" and single_device(one) is None else () for one in plain]
    every = [one for unit, partitions in zip(units, parts, strict=True) for one in partitions or (unit,)]
    loaded = iter(_load_each(every, root, executor))
    return tuple(
        Bound(InTurns(unit, partitions, [next(loaded).run for _ in partitions]), lambda unit=unit: unit)  # type: ignore[misc]
        if partitions
        else next(loaded)
        for unit, partitions in zip(plain, parts, strict=True)
    )


def _load_each(units: Sequence[Unit], root: Path, executor: str) -> tuple[Bound, ...]:
    libraries: dict[str, Library] = {}
    with_host = [unit for unit in units if unit.host_source]
    for target in dict.fromkeys(map(target_of, with_host)):
        sources = [unit.host_source for unit in with_host if target_of(unit) == target]
        libraries |= load_code(dict.fromkeys(sources, Library), root, target)

    def load(device: str | None, own: Sequence[Unit]) -> list[Bound]:
        return _load(own, libraries, place_of(device, root) if executor == "fast" else None)

    return load_in_groups(units, lambda unit: single_device(chosen(unit, {})), load)


def _load(units: Sequence[Unit], libraries: Mapping[str, Library], place: Place | None) -> list[Bound]:
    """One callable for each of some units of one device; without a place they are run step by step."""
    loads = [step_by_step(chosen(unit, {}), libraries.get(unit.host_source)) for unit in units]
    if place is None or (any(unit.choices for unit in units) and place.machine() is None):  # timed is what would run
        return [Bound(one.slow, lambda unit=one.unit: unit) for one in loads]  # type: ignore[misc]
    runs = iter(place.load([one for unit, one in zip(units, loads, strict=True) if not unit.choices]))
    return [
        load_tuned(unit, place, one) if unit.choices else Bound(next(runs), lambda unit=one.unit: unit)  # type: ignore[misc]
        for unit, one in zip(units, loads, strict=True)
    ]


def place_of(device: str | None, root: Path) -> Place | None:
    """Where the native executor runs units of a device; None for other devices than those of CUDA."""
    if device is None or not device.startswith("cuda") or not torch.cuda.is_available():
        return None
    driver = driver_of(torch.device(device).index or 0)
    return Place(driver, cache(partial(machine_for, root, driver)), root / "triton")


class Place(NamedTuple):
    """A device and where machine code is kept. machine: the native executor, if there is one, which may still have to
    be compiled when kernels are asked for."""

    driver: Driver
    machine: Callable[[], Machine | None]
    directory: Path

    @property
    def capability(self) -> int:
        """Ten times the compute capability of the device."""
        major, minor = torch.cuda.get_device_capability(self.driver.index)
        return 10 * major + minor

    def cubins(self, needed: Sequence[Needed]) -> list[dict[str, Cubin]]:
        """Machine code, compiled at once."""
        return cubins_of(needed, self.capability, self.directory, module_of)

    def load(self, loads: Sequence[Load]) -> list[Any]:
        """Units as callables, their kernels compiled at once.

        Where sizes that were multiples make other machine code, that is what runs while they are, and the code for all
        sizes is made when they are not for the first time.
        """
        multiples = [useful(one.unit) for one in loads]
        codes = self.cubins([one.needed(assumed) for one, assumed in zip(loads, multiples, strict=True)])
        return [self._bound(*row) for row in zip(loads, codes, multiples, strict=True)]

    def _bound(self, one: Load, code: Mapping[str, Cubin], multiples: Multiples) -> Any:
        if not multiples:
            return self.bind(one.unit, one.slow, one.library, code)
        general = Later(lambda: self._bound(one, *self.cubins([one.needed(())]), ()))
        return self.bind(one.unit, general, one.library, code, multiples)

    def bind(
        self, unit: Unit, slow: Any, library: Library | None, cubins: Mapping[str, Cubin], multiples: Multiples = ()
    ) -> Any:
        """The callable, given the machine code of all kernels. slow: runs it for inputs of another kind, where one of
        `multiples` is none, and without a native executor."""
        machine = self.machine()
        if machine is None:
            return slow
        functions = {}
        for one in required_cubins(unit):
            loaded = self.driver.load(cubins[one.info.name], len(one.dtypes) + len(one.sizes))
            functions[one.info.name] = one.info, loaded, len(one.sizes)

        def launch(name: str) -> tuple[str, tuple[Dim, ...]] | None:
            if name not in functions:
                assert library is not None
                return "LAUNCH", (library.address(name),)
            info, function, count = functions[name]
            grid = (*info.grid, 1, 1)[:3]
            if 0 in grid:
                return None  # no point to run at
            early = int(is_early(info, self.capability))
            shape = (*grid, function.threads, function.shared, early, function.spare)
            return "LAUNCH_GRID", (function.handle, *shape, count)

        limits = (*((symbol(name) % number, 0) for name, number in multiples), *narrow(unit))
        encoded = encode(unit, launch, limits)
        return make_native(unit, slow, machine, encoded, (cubins, library), checks=not multiples)


class Later:
    """A callable that is made when it is called first."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    @cached_property
    def made(self) -> Any:
        return self.make()

    def __call__(self, *inputs: Any) -> Any:
        return self.made(*inputs)


def load_tuned(unit: Unit, place: Place, plain: Load) -> Bound:
    """A unit with choices as a callable, made by time. Templates that round float32 as torch's flags allowed when they
    were chosen are run while the flags are such; else what stands in the unit runs."""
    allowed = tf32_allowed()
    unit = with_tf32(unit) if allowed else unit
    picks, cubins = make_choices(unit, Bench(place.driver.index, place.capability, place.directory, place.bind))
    best = chosen(unit, picks)
    (run,) = place.load([step_by_step(best, plain.library)._replace(known=cubins)])
    if not any(one.dtypes[0] == "float32" and "TF32" in dict(one.info.constants) for one in required_cubins(best)):
        return Bound(run, lambda: best)
    by_flags = by_precision(allowed, run, Later(lambda: place.load([plain])[0]))
    return Bound(by_flags, lambda: best if tf32_allowed() == allowed else plain.unit)


def narrow(unit: Unit) -> Iterator[tuple[Dim, int]]:
    """What must not be larger than a number for the kernels of a unit to be right, which compute with 32 bits."""
    taken = (size for one in unit.instructions if isinstance(one, Launch) for size in one.sizes)
    for size in dict.fromkeys((*taken, *(extent(type_) for type_ in stated(unit)))):
        if not isinstance(size, int):
            yield size, LARGEST_32


class TritonWrapper(PythonWrapper):
    """Runs a unit's instructions on tensors, in order; Triton compiles each kernel at its first launch."""

    @cached_property
    def module(self) -> ModuleType:
        """What the source defines."""
        return module_of(self.unit.source)

    @cached_property
    def kernels(self) -> dict[str, tuple[Any, KernelInfo]]:
        """Triton's functions by name."""
        return {info.name: (getattr(self.module, info.function or info.name), info) for info in self.unit.kernels}

    def launch(self, kernel: str, buffers: list[torch.Tensor], dims: tuple[int, ...], symbols: Symbols) -> None:
        """Run one kernel, in Triton or on memory of the CPU."""
        if kernel in self.functions:
            super().launch(kernel, buffers, dims, symbols)
            return
        function, info = self.kernels[kernel]
        grid = sizes(info.grid, symbols)
        if 0 in grid:
            return  # no point to run at
        constants = dict(info.constants)
        if dims:
            constants["WIDE"] = int(
                max(*dims, *(reach(buffer.shape, buffer.stride()) for buffer in buffers)) > LARGEST_32
            )
        device = next((buffer.device for buffer in buffers if buffer.device.type != "cpu"), None)
        given = [_number(buffer) if device and buffer.device.type == "cpu" else buffer for buffer in buffers]
        limit = {"maxnreg": info.registers} if info.registers else {}
        # Triton takes the stream of the current device; what ATen did to the buffers is on that of their own.
        with nullcontext() if device is None else torch.cuda.device(device):
            function[grid](*given, *dims, **constants, num_warps=info.num_warps, num_stages=info.num_stages, **limit)


def _number(tensor: torch.Tensor) -> int | float:
    """What a kernel takes instead of a number on the CPU; see `NUMBER` in cubins.py."""
    return (tensor.view(torch.int64) if tensor.dtype == torch.float64 else tensor).item()
