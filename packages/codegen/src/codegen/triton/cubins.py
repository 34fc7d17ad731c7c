"""The machine code of a unit's kernels: compiled side by side, kept by content, loaded without Triton.

entry ::= <key>.cubins: {kernel: Cubin} as msgpack (see `kept.py`)
key   ::= sha256(source, kernels, alignments, capability, version of Triton)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType, ModuleType

import msgspec

from codegen.errors import UnknownTarget
from codegen.kept import read_kept, write_kept
from codegen.triton.compiling import compile_all
from codegen.triton.cubin import Cubin, Wanted, cubin_of


def cubins_of(
    source: str,
    kernels: tuple[Wanted, ...],
    capability: int,
    directory: Path,
    module: Callable[[str], ModuleType],
    known: Mapping[str, Cubin] = MappingProxyType({}),
) -> dict[str, Cubin]:
    """Machine code by kernel name; `module` imports a source, where that must be done here.

    known: what has been compiled already.
    """
    path = directory / f"{_key(source, kernels, capability)}.cubins"
    kept = read_kept(path)
    if kept is not None:
        return msgspec.msgpack.decode(kept, type=dict[str, Cubin])
    missing = tuple(one for one in kernels if one.info.name not in known)
    found = {one.info.name: known[one.info.name] for one in kernels if one.info.name in known}
    found |= _compile(source, missing, capability, module) if missing else {}
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


def _compile(
    source: str, kernels: tuple[Wanted, ...], capability: int, module: Callable[[str], ModuleType]
) -> dict[str, Cubin]:
    results = compile_all([(source, kernel.job(capability)) for kernel in kernels], module)
    return {kernel.info.name: cubin_of(kernel, result) for kernel, result in zip(kernels, results, strict=True)}
