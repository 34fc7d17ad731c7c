"""Loading Triton units: kernels become machine code for the device, and the native executor launches them.

Kernels on memory of the CPU are functions of a shared library. Units of several GPUs are run step by step, each kernel
launched by Triton; so are runs of a unit with symbolic sizes in which an index takes more than 32 bits, and all units
in Triton's interpreter (TRITON_INTERPRET=1 in the environment when they are loaded), which works on CPU tensors.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from codegen.cpp.compiler import compile_sources
from codegen.errors import UnknownTarget
from codegen.runtime.arguments import Symbols
from codegen.runtime.cuda_driver import driver_of
from codegen.runtime.encode import encode
from codegen.runtime.library import Library
from codegen.runtime.loader import machine_for
from codegen.runtime.memory_kinds import plan_memory, stated
from codegen.runtime.native import make_native, single_device
from codegen.runtime.python_wrapper import PythonWrapper
from codegen.runtime.symbols import sizes
from codegen.triton.cubin import ALIGNMENT
from codegen.triton.cubins import Wanted, cubins_of
from codegen.triton.emit import LARGEST_32
from stagewire.expr import Dim
from stagewire.program import KernelInfo, Launch, Unit
from stagewire.sizes import divides
from stagewire.types import extent


def load_triton(units: Sequence[Unit], cache_dir: str | Path | None, executor: str) -> tuple[Any, ...]:
    """One callable for each unit."""
    root = Path(cache_dir) if cache_dir is not None else Path(tempfile.gettempdir()) / "codegen-triton"
    sources = list(dict.fromkeys(unit.host_source for unit in units if unit.host_source))
    libraries = {source: Library(path) for source, path in zip(sources, compile_sources(sources, root), strict=True)}
    return tuple(_load(unit, libraries.get(unit.host_source), root / "triton", executor) for unit in units)


def _load(unit: Unit, library: Library | None, directory: Path, executor: str) -> Any:
    slow = TritonWrapper(unit, library, directory)
    device = single_device(unit)
    if executor != "fast" or device is None or not device.startswith("cuda") or not torch.cuda.is_available():
        return slow
    driver = driver_of(torch.device(device).index or 0)
    machine = machine_for(directory.parent, driver)
    if machine is None:
        return slow
    major, minor = torch.cuda.get_device_capability(driver.index)
    kernels = wanted(unit)
    cubins = cubins_of(unit.source, kernels, 10 * major + minor, directory, lambda: slow.module)
    functions = {}
    for one in kernels:
        loaded = driver.load(cubins[one.info.name], len(one.dtypes) + len(one.sizes))
        functions[one.info.name] = one.info, loaded, len(one.sizes)

    def launch(name: str) -> tuple[str, tuple[Dim, ...]] | None:
        if name not in functions:
            assert library is not None
            return library.launch(name)
        info, function, count = functions[name]
        grid = (*info.grid, 1, 1)[:3]
        if 0 in grid:
            return None  # no point to run at
        return "LAUNCH_GRID", (function.handle, *grid, function.threads, function.shared, function.spare, count)

    return make_native(unit, slow, machine, encode(unit, launch, tuple(narrow(unit))), (cubins, library))


def narrow(unit: Unit) -> Iterator[tuple[Dim, int]]:
    """What must not be larger than a number for the kernels of a unit to be right, which compute with 32 bits."""
    taken = (size for one in unit.instructions if isinstance(one, Launch) for size in one.sizes)
    for size in dict.fromkeys((*taken, *(extent(type_) for type_ in stated(unit)))):
        if not isinstance(size, int):
            yield size, LARGEST_32


def wanted(unit: Unit) -> tuple[Wanted, ...]:
    """The kernels of a unit; memory is aligned that is at a good distance from a root's start.

    Arenas and new tensors begin at good places, inputs that do not are refused by the native executor; a library may
    return a tensor that begins anywhere.
    """
    homes = plan_memory(unit)
    launches: dict[str, list[tuple[str, ...]]] = {}
    sizes: dict[str, tuple[bool, ...]] = {}
    for one in unit.instructions:
        if isinstance(one, Launch):
            launches.setdefault(one.kernel, []).append(one.buffers)
            sizes[one.kernel] = tuple(divides(ALIGNMENT, size) for size in one.sizes)

    def is_aligned(buffer: str) -> bool:
        return homes.of[buffer].kind != "library" and divides(ALIGNMENT, homes.distance[buffer])

    found = []
    for info in unit.kernels:
        places = range(len(info.parameters))
        aligned = frozenset(k for k in places if all(is_aligned(buffers[k]) for buffers in launches[info.name]))
        types = [homes.types[buffer] for buffer in launches[info.name][0]]
        found.append(
            Wanted(info, tuple(type_.dtype for type_ in types if type_ is not None), aligned, sizes[info.name])
        )
    return tuple(found)


def import_source(source: str, directory: Path) -> ModuleType:
    """Import `source` from a file named by its hash."""
    name = "kernels_" + hashlib.sha256(source.encode()).hexdigest()[:24]
    path = directory / f"{name}.py"
    directory.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != source:
        handle, part = tempfile.mkstemp(dir=directory, suffix=".part")
        with os.fdopen(handle, "w") as file:
            file.write(source)
        os.replace(part, path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise UnknownTarget(
            "Triton is not installed", fix="pip install triton (it is part of torch for CUDA)."
        ) from error
    return module


class TritonWrapper(PythonWrapper):
    """Runs a unit's instructions on tensors, in order; Triton compiles each kernel at its first launch."""

    def __init__(self, unit: Unit, library: Library | None, directory: Path) -> None:
        super().__init__(unit, library)
        self.directory = directory

    @cached_property
    def module(self) -> ModuleType:
        """The source, imported."""
        return import_source(self.unit.source, self.directory)

    @cached_property
    def kernels(self) -> dict[str, tuple[Any, KernelInfo]]:
        """Triton's functions by name."""
        return {info.name: (getattr(self.module, info.name), info) for info in self.unit.kernels}

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
            constants["WIDE"] = int(max(*dims, *(reach(buffer) for buffer in buffers)) > LARGEST_32)
        function[grid](*buffers, *dims, **constants, num_warps=info.num_warps, num_stages=info.num_stages)


def reach(tensor: torch.Tensor) -> int:
    """How many elements lie from the first of a tensor to its last."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
