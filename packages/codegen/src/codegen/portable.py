"""Machine code of units as data: made ahead for named instruction sets, and loaded where there is no compiler.

    compiled ::= requirement library*       library: the shared library of a source, under the source's digest

The native executor is among the sources, so that a process that loads them compiles nothing. Only C++ travels so.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from codegen.content_store import read_stored
from codegen.cpp.compiler import code_key, vector_math
from codegen.cpp.machine_code import compile_sources, write_code
from codegen.cpp.target import Isa, Target, check_target
from codegen.errors import UnknownTarget, UnsupportedInstructionSet
from codegen.load import Loaded
from stagewire.private_files import temporary_directory
from stagewire.program import Unit

__all__ = ["Requirement", "compile_ahead", "load_compiled", "obstacle", "requirement"]


class Requirement(msgspec.Struct, frozen=True):
    """What a process must have that runs some machine code.

    isa: the instruction set ("native", or a level). processor: of "native" code a digest of all that the processor has,
    which must be the same; "" for a level. c_library: name and version, the least. vector_math: whether the code calls
    the C library's functions on vectors.
    """

    isa: Isa
    processor: str
    c_library: tuple[str, str]
    vector_math: bool


def requirement(isa: Isa) -> Requirement:
    """That of machine code which this process makes now."""
    return Requirement(isa, _processor(isa), platform.libc_ver(), bool(vector_math()))  # type: ignore[arg-type]


def obstacle(needed: Requirement) -> str | None:
    """Why this process cannot run such machine code; None where it can."""
    name, version = platform.libc_ver()
    if (name, _numbers(version)) < (needed.c_library[0], _numbers(needed.c_library[1])) or name != needed.c_library[0]:
        return f"it was made for {' '.join(needed.c_library)}, and this is {name} {version}"
    if needed.vector_math and not vector_math():
        return "it calls functions on vectors that this C library lacks"
    if needed.processor != _processor(needed.isa):
        return "it was made for another kind of processor"
    try:
        Target(needed.isa).require()
    except UnsupportedInstructionSet as error:
        return error.message
    return None


def compile_ahead(units: Sequence[Unit], isa: Isa) -> dict[str, bytes]:
    """Shared libraries by the digest of their sources, for any instruction set, also one that this processor lacks.

    Errors: `UnknownTarget` for units that are not C++ alone, and those of compiling.
    """
    other = sorted({unit.target for unit in units if unit.target != "cpp"})
    if other:
        raise UnknownTarget(f"units of the target {other[0]!r} are not compiled ahead", fix="Only those of cpp are.")
    check_target(Target(isa))
    sources = list(dict.fromkeys(_sources(units)))
    paths = compile_sources(sources, None, Target(isa), runs=False)
    return {_digest(source): read_stored(path) or b"" for source, path in zip(sources, paths, strict=True)}


def load_compiled(units: Sequence[Unit], isa: Isa, libraries: Mapping[str, bytes]) -> tuple[Loaded, ...]:
    """The units as callables (see `codegen.load`), of machine code that `compile_ahead` made. It is run as it is.

    A source without a library, or one that the dynamic linker refuses, is compiled here, if there is a compiler.
    """
    from codegen.runtime.native import load_cpp  # loads torch

    directory = temporary_directory()
    for source in _sources(units):
        if _digest(source) in libraries:
            write_code(directory, code_key(source, Target(isa)), libraries[_digest(source)])
    return tuple(one.run for one in load_cpp([replace(unit, isa=isa) for unit in units], directory, "fast"))


def _sources(units: Sequence[Unit]) -> Iterator[str]:
    from codegen.runtime.native import executor_source  # loads torch

    yield executor_source()
    yield from (unit.source for unit in units if unit.source)


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:40]


def _processor(isa: Isa) -> str:
    return hashlib.sha256(Target(isa).processors.encode()).hexdigest()[:40] if isa == "native" else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
