"""The machine code of a unit's kernels: compiled side by side, kept by content, loaded without Triton.

entry ::= <key>.cubins: {kernel: Cubin} as msgpack (see `content_store.py`)
key   ::= sha256(source, kernels, alignments, capability, version of Triton)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import NamedTuple

import msgspec

from codegen.content_store import FORMAT, read_stored, write_stored
from codegen.errors import CompileFailed, UnknownTarget, UnsupportedKernel
from codegen.triton.compile_server import Job, Result
from codegen.triton.compiling import compile_all
from codegen.triton.emit import EARLY
from codegen.triton.expressions import POINTER
from codegen.triton.tuning import VECTOR_BYTES
from stagewire.program import KernelInfo

NUMBER = {"int64": "i64", "float32": "fp32", "float64": "i64"}
"""As what kernels take numbers of the CPU, by dtype: Triton makes fp32 of what Python's floats are, hence the bits."""


FIRST_EARLY = 90
"""Ten times the compute capability from which on kernels can wait for the one in front (PTX: griddepcontrol)."""


class Cubin(msgspec.Struct, frozen=True):
    """One kernel. `code`: an ELF file. `shared`: bytes of dynamic shared memory."""

    code: bytes
    symbol: str
    shared: int
    warps: int


class CubinSpec(NamedTuple):
    """A kernel to be compiled.

    dtypes: of its buffers, in the order of its parameters. aligned: which of them always begin at a multiple of
    `VECTOR_BYTES` bytes. sizes: for each size that it takes, a number of which that is always a multiple. values: of
    which buffers it takes the only element instead of the address.
    """

    info: KernelInfo
    dtypes: tuple[str, ...]
    aligned: frozenset[int] = frozenset()
    sizes: tuple[int, ...] = ()
    values: frozenset[int] = frozenset()

    def job(self, capability: int) -> Job:
        """What is asked of Triton for compute capability `capability` / 10."""
        kinds = [NUMBER[dtype] if i in self.values else POINTER[dtype] for i, dtype in enumerate(self.dtypes)]
        buffers = {f"p{i}": kind for i, kind in enumerate(kinds)}
        constants = dict(self.info.constants)
        if is_early(self.info, capability):
            constants[EARLY[0]] = 1
        divisors = dict.fromkeys(sorted(self.aligned), VECTOR_BYTES)
        divisors |= {len(self.dtypes) + i: divisor for i, divisor in enumerate(self.sizes) if divisor > 1}
        return Job(
            function=self.info.function or self.info.name,
            signature=buffers
            | {f"n{i}": "i32" for i in range(len(self.sizes))}
            | dict.fromkeys(constants, "constexpr"),
            constants=constants,
            divisors=divisors,
            warps=self.info.num_warps,
            stages=self.info.num_stages,
            registers=self.info.registers,
            capability=capability,
        )


def is_early(info: KernelInfo, capability: int) -> bool:
    """Whether a kernel is launched before the one in front has ended: it waits, on GPUs that know how."""
    return capability >= FIRST_EARLY and EARLY in info.constants


def cubin_of(wanted: CubinSpec, result: Result | str) -> Cubin:
    """What came of a kernel; `CompileFailed` where nothing did."""
    if isinstance(result, str):
        raise CompileFailed(f"kernel {wanted.info.name}: {result}")
    code, symbol, shared, warps, takes_more = result
    if takes_more:
        raise UnsupportedKernel(f"kernel {wanted.info.name} needs scratch memory or a cluster of blocks")
    return Cubin(code, symbol, shared, warps)


class Needed(NamedTuple):
    """Kernels of a source. known: machine code of some of them."""

    source: str
    kernels: tuple[CubinSpec, ...]
    known: Mapping[str, Cubin] = MappingProxyType({})

    @property
    def missing(self) -> tuple[CubinSpec, ...]:
        """Those that are not known."""
        return tuple(kernel for kernel in self.kernels if kernel.info.name not in self.known)

    def key(self, capability: int) -> str:
        """What the machine code is kept by."""
        described = [(one.info, one.dtypes, sorted(one.aligned), one.sizes, sorted(one.values)) for one in self.kernels]
        text = "\0".join((FORMAT, self.source, repr(described), str(capability), triton_version()))
        return hashlib.sha256(text.encode()).hexdigest()[:40]


def cubins_of(
    units: Sequence[Needed], capability: int, directory: Path, module: Callable[[str], ModuleType]
) -> list[dict[str, Cubin]]:
    """For each unit machine code by kernel name, all that is missing compiled at once.

    module: imports a source, where kernels must be compiled in this process.
    """
    paths = [directory / f"{unit.key(capability)}.cubins" for unit in units]
    found = [_read(path) for path in paths]
    new = [number for number, cubins in enumerate(found) if cubins is None]
    missing = [(number, kernel) for number in new for kernel in units[number].missing]
    request = [(units[number].source, kernel.job(capability)) for number, kernel in missing]
    made: dict[int, dict[str, Cubin]] = {number: {} for number in new}
    for (number, kernel), result in zip(missing, compile_all(request, module), strict=True):
        made[number][kernel.info.name] = cubin_of(kernel, result)
    for number, cubins in made.items():
        known = units[number].known
        cubins |= {one.info.name: known[one.info.name] for one in units[number].kernels if one.info.name in known}
        write_stored(paths[number], msgspec.msgpack.encode(cubins))
    return [made[number] if cubins is None else cubins for number, cubins in enumerate(found)]


def _read(path: Path) -> dict[str, Cubin] | None:
    kept = read_stored(path)
    return None if kept is None else msgspec.msgpack.decode(kept, type=dict[str, Cubin])


def triton_version() -> str:
    """The version of Triton that is installed."""
    try:
        return version("triton")
    except PackageNotFoundError as error:
        fix = "pip install triton (it is part of torch for CUDA)."
        raise UnknownTarget("Triton is not installed", fix=fix) from error
