"""The machine code of a unit's kernels: compiled side by side, kept by content, loaded without Triton.

entry ::= <key>.cubins: {kernel: Cubin} as msgpack (see `kept.py`)
key   ::= sha256(source, kernels, alignments, capability, version of Triton)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import NamedTuple

import msgspec

from codegen.errors import UnknownTarget
from codegen.kept import read_kept, write_kept
from codegen.triton.cubin import Cubin, compile_cubin
from stagewire.program import KernelInfo


class Wanted(NamedTuple):
    """A kernel to be compiled: see `compile_cubin`."""

    info: KernelInfo
    dtypes: tuple[str, ...]
    aligned: frozenset[int]
    sizes: tuple[int, ...] = ()
    values: frozenset[int] = frozenset()


def cubins_of(
    source: str,
    kernels: tuple[Wanted, ...],
    capability: int,
    directory: Path,
    module: Callable[[], ModuleType],
    known: Mapping[str, Cubin] = MappingProxyType({}),
) -> dict[str, Cubin]:
    """Machine code by kernel name; `module` imports the source, and is asked only where something must be compiled.

    known: what has been compiled already.
    """
    path = directory / f"{_key(source, kernels, capability)}.cubins"
    kept = read_kept(path)
    if kept is not None:
        return msgspec.msgpack.decode(kept, type=dict[str, Cubin])
    missing = tuple(one for one in kernels if one.info.name not in known)
    found = {one.info.name: known[one.info.name] for one in kernels if one.info.name in known}
    found |= _compile(missing, capability, module()) if missing else {}
    write_kept(path, msgspec.msgpack.encode(found))
    return found


def _key(source: str, kernels: tuple[Wanted, ...], capability: int) -> str:
    described = [(one.info, one.dtypes, sorted(one.aligned), one.sizes, sorted(one.values)) for one in kernels]
    text = "\0".join((source, repr(described), str(capability), triton_version()))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def triton_version() -> str:
    """The version of Triton that is installed."""
    try:
        return version("triton")
    except PackageNotFoundError as error:
        fix = "pip install triton (it is part of torch for CUDA)."
        raise UnknownTarget("Triton is not installed", fix=fix) from error


def _compile(kernels: tuple[Wanted, ...], capability: int, module: ModuleType) -> dict[str, Cubin]:
    def one(kernel: Wanted) -> Cubin:
        return compile_cubin(
            module, kernel.info, kernel.dtypes, capability, kernel.aligned, kernel.sizes, kernel.values
        )

    if len(kernels) < 2:
        return {kernel.info.name: one(kernel) for kernel in kernels}
    with ThreadPoolExecutor(min(len(kernels), os.cpu_count() or 1, 16)) as pool:
        return dict(zip((kernel.info.name for kernel in kernels), pool.map(one, kernels), strict=True))
