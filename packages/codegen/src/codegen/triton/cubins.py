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

from codegen.content_store import read_stored, write_stored
from codegen.errors import UnknownTarget
from codegen.triton.compiling import compile_all
from codegen.triton.cubin import Cubin, CubinSpec, cubin_of


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
        text = "\0".join((self.source, repr(described), str(capability), triton_version()))
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
