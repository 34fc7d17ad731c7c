"""The machine code of a unit's kernels: compiled side by side, kept by content, loaded without Triton.

entry ::= <key>.cubins: sha256 of the rest, then {kernel: Cubin} as msgpack
key   ::= sha256(source, kernels, alignments, capability, version of Triton)
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import msgspec

from codegen.errors import CorruptCode, UnknownTarget
from codegen.triton.cubin import Cubin, compile_cubin
from stagewire.program import KernelInfo

_DIGEST = 32


class Wanted(NamedTuple):
    """A kernel to be compiled: see `compile_cubin`."""

    info: KernelInfo
    dtypes: tuple[str, ...]
    aligned: frozenset[int]
    sizes: tuple[bool, ...] = ()


def cubins_of(
    source: str, kernels: tuple[Wanted, ...], capability: int, directory: Path, module: Callable[[], ModuleType]
) -> dict[str, Cubin]:
    """Machine code by kernel name; `module` imports the source, and is asked only where something must be compiled."""
    path = directory / f"{_key(source, kernels, capability)}.cubins"
    found = _read(path)
    if found is None:
        found = _compile(kernels, capability, module())
        _write(path, found)
    return found


def _key(source: str, kernels: tuple[Wanted, ...], capability: int) -> str:
    described = [(one.info, one.dtypes, sorted(one.aligned), one.sizes) for one in kernels]
    text = "\0".join((source, repr(described), str(capability), _version()))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _version() -> str:
    try:
        return version("triton")
    except PackageNotFoundError as error:
        fix = "pip install triton (it is part of torch for CUDA)."
        raise UnknownTarget("Triton is not installed", fix=fix) from error


def _compile(kernels: tuple[Wanted, ...], capability: int, module: ModuleType) -> dict[str, Cubin]:
    def one(kernel: Wanted) -> Cubin:
        return compile_cubin(module, kernel.info, kernel.dtypes, capability, kernel.aligned, kernel.sizes)

    if len(kernels) < 2:
        return {kernel.info.name: one(kernel) for kernel in kernels}
    with ThreadPoolExecutor(min(len(kernels), os.cpu_count() or 1, 16)) as pool:
        return dict(zip((kernel.info.name for kernel in kernels), pool.map(one, kernels), strict=True))


def _read(path: Path) -> dict[str, Cubin] | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
        warnings.warn(f"machine code {path} is damaged: ignored and made again", CorruptCode, stacklevel=4)
        return None
    return msgspec.msgpack.decode(data[_DIGEST:], type=dict[str, Cubin])


def _write(path: Path, cubins: dict[str, Cubin]) -> None:
    data = msgspec.msgpack.encode(cubins)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(handle, "wb") as file:
        file.write(hashlib.sha256(data).digest() + data)
    os.replace(part, path)
