"""Compilers of C++: which there is, with which flags, and the key of what it makes of a source."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple

from codegen.content_store import FORMAT
from codegen.cpp.target import NATIVE, Target
from codegen.errors import CompilerFault, NoCompiler

FLAGS = (
    "-O3",
    "-fopenmp",
    "-fPIC",
    "-shared",
    "-fno-math-errno",  # sqrt needs no errno and so becomes one instruction
    "-fno-trapping-math",  # comparisons and selects may be computed speculatively; no value changes
    "-ffp-contract=off",  # a*b+c rounds twice, as eager's separate ops do
    "-mno-mmx",  # gcc moves pairs of floats through those registers, and leaves the x87 stack full behind them
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
            return (*flags, *_known((self.path, *self.arguments), target.processor_flags), *vector_math())
        return tuple(taken for flag in flags for taken in ZIG_FLAGS.get(flag, (flag.replace("x86-64-", "x86_64_"),)))


def find_compiler() -> Compiler:
    """The command in CXX ("g++-13", "ccache g++"); without one the first of g++, clang++, c++ on PATH, or ziglang.

    Raises `NoCompiler` where there is none, and `CompilerFault` where it does not say what it is.
    """
    wanted = os.environ.get("CXX", "").strip()
    if wanted:
        try:
            name, *arguments = shlex.split(wanted)
        except ValueError as error:
            raise NoCompiler(f"CXX={wanted!r} is no command: {error}") from None
        path = shutil.which(name)
        if path is None:
            raise NoCompiler(f"CXX={wanted!r} is not a program")
        return Compiler(path, _version(path, *arguments), tuple(arguments))
    for name in CANDIDATES:
        path = shutil.which(name)
        if path is not None:
            return Compiler(path, _version(path))
    if find_spec("ziglang") is not None:
        return Compiler(sys.executable, _version(sys.executable, *ZIG), ZIG)
    raise NoCompiler(f"none of {', '.join(CANDIDATES)} is on PATH")


@lru_cache(maxsize=8)
def _version(path: str, *arguments: str) -> str:
    done = _asked([path, *arguments, "--version"])
    said = done.stdout.decode(errors="replace").partition("\n")[0].strip()
    if done.returncode:
        raise CompilerFault(
            f"{path} --version ended with {done.returncode}: {done.stderr.decode(errors='replace')[:300]}"
        )
    return said


def _asked(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    """What a compiler says of itself, which takes it a moment."""
    try:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:  # pipes may stay open behind it
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=60, check=False)
            said = [file.seek(0) or file.read(1 << 16) for file in (out, err)]
            return subprocess.CompletedProcess(command, done.returncode, *said)
    except OSError as error:
        raise CompilerFault(f"{command[0]} cannot be started: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise CompilerFault(f"{' '.join(command)} has not ended within a minute") from error


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
    """The content key of a source on this machine; the compiler is not asked for, so that a hit needs none. One that is
    named with arguments counts, for they may change the code."""
    named = os.environ.get("CXX", "").strip()
    flags = " ".join((*FLAGS, *target.flags, *target.processor_flags, *vector_math()))
    text = "\0".join(
        (
            FORMAT,
            source,
            flags,
            target.processors,
            platform.system(),
            " ".join(platform.libc_ver()),
            named if " " in named else "",
        )
    )
    return hashlib.sha256(text.encode()).hexdigest()[:40]


@lru_cache(maxsize=8)
def _known(compiler: tuple[str, ...], flags: tuple[str, ...]) -> tuple[str, ...]:
    """Those of some flags that a compiler knows; it does without what the others leave out or ask for."""
    return flags if _takes(compiler, *flags) else tuple(flag for flag in flags if _takes(compiler, flag))


def _takes(compiler: tuple[str, ...], *flags: str) -> bool:
    return not flags or _asked([*compiler, *flags, "-fsyntax-only", "-x", "c++", os.devnull]).returncode == 0
