"""From source text to a shared library: find a compiler, compile units side by side, keep machine code by content.

    entry ::= <key>.so  <key>.json {"size", "sha256"}        key = sha256(source, flags, compiler, processors)

A hit starts no compiler. An entry whose bytes do not match its side file is ignored with a warning and made again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec
from filelock import FileLock

from codegen.cpp.target import NATIVE, Target
from codegen.errors import CompileFailed, CorruptCode, NoCompiler

FLAGS = (
    "-O3",
    "-fopenmp",
    "-fPIC",
    "-shared",
    "-fno-math-errno",  # sqrt needs no errno and so becomes one instruction
    "-fno-trapping-math",  # comparisons and selects may be computed speculatively; no value changes
    "-ffp-contract=off",  # a*b+c rounds twice, as eager's separate ops do
    "-fwrapv",  # integer overflow wraps
    "-fno-semantic-interposition",
    "-fno-exceptions",
    "-fno-stack-protector",
    "-w",
)
"""Those of every unit; `codegen.cpp.target` has those of its target."""

CANDIDATES = ("g++", "clang++", "c++")
ZIG = ("-m", "ziglang", "c++")
"""How Python runs the compiler of the package `ziglang` (stagefold[zig]), which is taken where the system has none."""

ZIG_FLAGS = {"-fopenmp": ("-fopenmp-simd", "-fno-sanitize=undefined", "-nostdlib++")}
"""What replaces a flag there: it brings no OpenMP runtime (kernels stay on one thread), and checks by default."""


class Compiler(NamedTuple):
    """`path` of the program; `version`: first line of what it says about itself; `arguments` that come first."""

    path: str
    version: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{' '.join((self.path, *self.arguments))} ({self.version})"

    def flags(self, target: Target = NATIVE) -> tuple[str, ...]:
        """The flags for a unit, as this compiler takes them."""
        flags = (*FLAGS, *target.flags)
        if self.arguments != ZIG:
            return (*flags, *_known(self.path, target.processor_flags), *vector_math())
        return tuple(taken for flag in flags for taken in ZIG_FLAGS.get(flag, (flag.replace("x86-64-", "x86_64_"),)))


class _Record(msgspec.Struct):
    size: int
    sha256: str


def find_compiler() -> Compiler:
    """The program named by CXX, the first of g++, clang++, c++ on PATH, or ziglang; `NoCompiler` if there is none."""
    wanted = os.environ.get("CXX")
    for name in (wanted, *CANDIDATES) if wanted else CANDIDATES:
        path = shutil.which(name)
        if path is not None:
            return Compiler(path, _version(path))
    if find_spec("ziglang") is not None:
        return Compiler(sys.executable, _version(sys.executable, *ZIG), ZIG)
    asked = f"CXX={wanted!r} is not a program; " if wanted else ""
    raise NoCompiler(f"{asked}none of {', '.join(CANDIDATES)} is on PATH")


@lru_cache(maxsize=8)
def _version(path: str, *arguments: str) -> str:
    done = subprocess.run([path, *arguments, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0].strip()


@lru_cache(maxsize=1)
def vector_math() -> tuple[str, ...]:
    """The flag by which functions of the C library are declared with forms for vectors, where it has them: glibc from
    2.35 on, whose library of them is loaded for all units here."""
    if platform.machine() != "x86_64":
        return ()
    try:
        library = ctypes.CDLL("libmvec.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return ()
    return ("-DSF_VECTOR_LIBM",) if hasattr(library, "_ZGVbN2v_tanh") else ()


def code_key(source: str, target: Target = NATIVE) -> str:
    """The content key of a source on this machine; the compiler is not asked for, so that a hit needs none."""
    flags = " ".join((*FLAGS, *target.flags, *target.processor_flags, *vector_math()))
    text = "\0".join((source, flags, target.processors, platform.system()))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def compile_sources(sources: Sequence[str], directory: str | Path, target: Target = NATIVE) -> list[Path]:
    """Paths of shared libraries for `sources`, in order; misses compile at the same time.

    A coded error where this process cannot run code for `target`.
    """
    target.require()
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    keys = [code_key(source, target) for source in sources]
    missing = {key: source for key, source in zip(keys, sources, strict=True) if not _is_good(directory, key)}
    if missing:
        compiler = find_compiler()
        if len(missing) == 1:
            for key, source in missing.items():
                _make(key, source, directory, compiler, target)
        else:
            with ThreadPoolExecutor(len(missing)) as pool:
                done = [pool.submit(_make, key, source, directory, compiler, target) for key, source in missing.items()]
                for one in done:
                    one.result()
    return [directory / f"{key}.so" for key in keys]


def _is_good(directory: Path, key: str) -> bool:
    """Whether the entry is there and whole; a damaged one is reported and removed."""
    code, record = directory / f"{key}.so", directory / f"{key}.json"
    try:
        noted = msgspec.json.decode(record.read_bytes(), type=_Record)
        data = code.read_bytes()
    except FileNotFoundError:
        return False
    except msgspec.MsgspecError:
        noted, data = _Record(-1, ""), b""
    if len(data) == noted.size and hashlib.sha256(data).hexdigest() == noted.sha256:
        return True
    warnings.warn(f"machine code {code} is damaged: ignored and made again", CorruptCode, stacklevel=4)
    record.unlink(missing_ok=True)
    return False


def _make(key: str, source: str, directory: Path, compiler: Compiler, target: Target) -> None:
    with FileLock(str(directory / f"{key}.lock")):
        if _is_good(directory, key):  # another process was faster
            return
        with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as scratch:
            library = run_compiler(compiler, source, Path(scratch), target)
            data = library.read_bytes()
            record = Path(scratch) / "record.json"
            record.write_bytes(msgspec.json.encode(_Record(len(data), hashlib.sha256(data).hexdigest())))
            library.replace(directory / f"{key}.so")
            record.replace(directory / f"{key}.json")


@lru_cache(maxsize=8)
def _known(path: str, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Those of some flags that a compiler knows; it does without what the others leave out or ask for."""
    return flags if _takes(path, *flags) else tuple(flag for flag in flags if _takes(path, flag))


def _takes(path: str, *flags: str) -> bool:
    command = [path, *flags, "-fsyntax-only", "-x", "c++", os.devnull]
    return not flags or subprocess.run(command, capture_output=True, check=False).returncode == 0


def run_compiler(compiler: Compiler, source: str, scratch: Path, target: Target = NATIVE) -> Path:
    """Compile one source in `scratch`; the compiler's first messages are in the error if it refuses."""
    text, library = scratch / "unit.cpp", scratch / "unit.so"
    text.write_text(source)
    command = [compiler.path, *compiler.arguments, *compiler.flags(target), str(text), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join(done.stderr.splitlines()[:20])
        raise CompileFailed(f"{compiler} ended with {done.returncode}:\n{said}")
    return library
