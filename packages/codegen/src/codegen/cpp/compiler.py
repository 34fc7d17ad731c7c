"""Compilers of C++: which there is, with which flags, and the key of what it makes of a source."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from _ctypes import dlclose
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from codegen.content_store import FORMAT
from codegen.cpp.target import NATIVE, Target
from codegen.errors import CompileFailed, CompilerFault, NoCompiler

FLAGS = (
    "-O3",
    "-fopenmp",
    "-fPIC",
    "-shared",
    "-fno-math-errno",  # sqrt needs no errno and so becomes one instruction
    "-fno-trapping-math",  # comparisons and selects may be computed speculatively (and see SF_WHOLE)
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
    machine = target.processors, platform.system(), " ".join(platform.libc_ver())
    text = "\0".join((FORMAT, source, flags, *machine, named if " " in named else ""))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


@lru_cache(maxsize=8)
def _known(compiler: tuple[str, ...], flags: tuple[str, ...]) -> tuple[str, ...]:
    """Those of some flags that a compiler knows; it does without what the others leave out or ask for."""
    return flags if _takes(compiler, *flags) else tuple(flag for flag in flags if _takes(compiler, flag))


def _takes(compiler: tuple[str, ...], *flags: str) -> bool:
    return not flags or _asked([*compiler, *flags, "-fsyntax-only", "-x", "c++", os.devnull]).returncode == 0


LIMIT = 600.0
"""Seconds that a compiler may take; the longest of the tests and benchmarks take 20 on one core."""

_LINES, _CHARACTERS = 20, 300
_NO_ROOM = (
    "No space left", "File too large", "size limit exceeded", "Cannot allocate memory", "virtual memory exhausted",
    "out of memory", "Disk quota exceeded", "Killed",
)  # fmt: skip
"""What compilers say where the machine is at fault, and not the source."""
_ROOM = "Free memory, or disk space where the compiler works (TMPDIR names the directory), and try again."


class Compilation:
    """A source that is being compiled in `scratch`, a directory for it and for the compiler's temporary files alone.

    It is a process, so that several run side by side; it is ended with all that it started when it takes too long or
    when this process is interrupted.
    """

    def __init__(self, compiler: Compiler, source: str, scratch: Path, target: Target = NATIVE) -> None:
        self.compiler, self.scratch = compiler, scratch
        self.library = scratch / "unit.so"
        text = scratch / "unit.cpp"
        try:
            text.write_text(source)
            command = [compiler.path, *compiler.arguments, *compiler.flags(target), str(text), "-o", str(self.library)]
            with open(scratch / "said", "wb") as said:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,  # its end tells that all have ended whom the compiler had started
                    stderr=said,
                    env=os.environ | {"TMPDIR": str(scratch)},
                    start_new_session=True,
                )
        except OSError as error:
            raise CompilerFault(f"{compiler} cannot be started: {error}") from error

    def machine_code(self, limit: float = LIMIT) -> bytes:
        """The shared library, once it is there, and loads; the compiler's first messages are in the error else."""
        try:
            self._wait(time.monotonic() + limit)
        finally:
            self.end()
        code = self._process.returncode
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            raise CompilerFault(f"{self.compiler} was ended by {name}", fix=_ROOM)
        if code:
            said = self._messages()
            if any(sign in said for sign in _NO_ROOM):
                raise CompilerFault(f"{self.compiler} ended with {code}:\n{said}", fix=_ROOM)
            raise CompileFailed(f"{self.compiler} ended with {code}:\n{said}")
        try:
            data = self.library.read_bytes()
            check_loads(self.library, data)
        except OSError as error:
            raise CompilerFault(f"{self.compiler} ended with 0, but its machine code does not load: {error}") from error
        return data

    def end(self) -> None:
        """End the process, and those that it started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _wait(self, deadline: float) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        waiting = select.poll()
        waiting.register(stdout, select.POLLIN | select.POLLHUP)
        while self._process.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                fix = "End what keeps the machine busy, or name another compiler in CXX."
                raise CompilerFault(f"{self.compiler} has not ended in time, and was ended", fix=fix)
            # A second at most: what the compiler started (a compile server) may live on with its output open.
            if waiting.poll(min(left, 1.0) * 1000) and not os.read(stdout.fileno(), 1 << 16):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(left)

    def _messages(self) -> str:
        with open(self.scratch / "said", "rb") as said:
            lines = said.read(1 << 16).decode(errors="replace").splitlines()[:_LINES]
        return "\n".join(line if len(line) <= _CHARACTERS else f"{line[:_CHARACTERS]}..." for line in lines)


def check_loads(path: Path, data: bytes) -> None:
    """Raise `OSError` where the dynamic linker does not take a shared library, of which `data` is the content."""
    if data[:4] == b"\x7fELF":  # a part of one would be mapped, and reading the rest would end the process
        place, size, count = (int.from_bytes(data[a:b], "little") for a, b in ((40, 48), (58, 60), (60, 62)))
        if len(data) < 64 or place + size * count > len(data):
            raise OSError(f"{path.name} is cut off after {len(data)} bytes")
    dlclose(ctypes.CDLL(str(path))._handle)


def scratch_directory(parent: Path) -> tempfile.TemporaryDirectory[str]:
    """A directory for one compilation. Raises `CompilerFault`."""
    try:
        return tempfile.TemporaryDirectory(dir=parent, prefix="build-", ignore_cleanup_errors=True)
    except OSError as error:
        raise CompilerFault(f"there is no room to compile in {parent}: {error}", fix=_ROOM) from error
