"""From source text to a shared library: find a compiler, compile units side by side, keep machine code by content.

    entry ::= <key>.so  <key>.json {"size", "sha256"}        key = sha256(source, flags, compiler, processor)

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

from codegen.errors import CompileFailed, CorruptCode, NoCompiler

FLAGS = (
    "-O3",
    "-march=native",
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
PROCESSOR_FLAGS = {
    # Half precision is computed in float32, so that AVX512-FP16 is not needed; assemblers of binutils before 2.42
    # refuse what compilers emit for it (masked `vmovsh`).
    "avx512_fp16": "-mno-avx512fp16",
    # gcc prefers 256 bits on Intel's processors. On Sapphire Rapids 512 are quicker: in the geometric mean of twelve
    # patterns by 1.21 on one thread, by 1.34 on four (softmax by 1.8); older processors slow their clocks down.
    "avx512_bf16": "-mprefer-vector-width=512",
}
"""What the units take besides on a processor with a feature, from compilers that know the flag."""

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

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags for a unit, as this compiler takes them."""
        if self.arguments != ZIG:
            return (*FLAGS, *_own_flags(self.path), *vector_math())
        return tuple(given for flag in FLAGS for given in ZIG_FLAGS.get(flag, (flag,)))


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


@lru_cache(maxsize=1)
def processor() -> str:
    """What -march=native depends on: the architecture and the processor's feature flags."""
    text = platform.machine()
    try:
        with open("/proc/cpuinfo") as info:
            lines = info.read().partition("\n\n")[0].splitlines()
    except OSError:
        return f"{text} {platform.processor()} {platform.system()}"
    wanted = ("flags", "Features", "model name", "cpu family", "model\t", "vendor_id")
    return "\n".join([text, *sorted(line for line in lines if line.startswith(wanted))])


def code_key(source: str) -> str:
    """The content key of a source on this machine; the compiler is not asked for, so that a hit needs none."""
    flags = " ".join((*FLAGS, *_processor_flags(), *vector_math()))
    text = "\0".join((source, flags, processor(), platform.system()))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def compile_sources(sources: Sequence[str], directory: str | Path) -> list[Path]:
    """Paths of shared libraries for `sources`, in order; misses compile at the same time."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    keys = [code_key(source) for source in sources]
    missing = {key: source for key, source in zip(keys, sources, strict=True) if not _is_good(directory, key)}
    if missing:
        compiler = find_compiler()
        if len(missing) == 1:
            for key, source in missing.items():
                _make(key, source, directory, compiler)
        else:
            with ThreadPoolExecutor(len(missing)) as pool:
                done = [pool.submit(_make, key, source, directory, compiler) for key, source in missing.items()]
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


def _make(key: str, source: str, directory: Path, compiler: Compiler) -> None:
    with FileLock(str(directory / f"{key}.lock")):
        if _is_good(directory, key):  # another process was faster
            return
        with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as scratch:
            library = run_compiler(compiler, source, Path(scratch))
            data = library.read_bytes()
            record = Path(scratch) / "record.json"
            record.write_bytes(msgspec.json.encode(_Record(len(data), hashlib.sha256(data).hexdigest())))
            library.replace(directory / f"{key}.so")
            record.replace(directory / f"{key}.json")


@lru_cache(maxsize=8)
def _own_flags(path: str) -> tuple[str, ...]:
    """Those of the processor's flags that this compiler knows; it does without what the others leave out or ask for."""
    wanted = _processor_flags()
    return wanted if _takes(path, *wanted) else tuple(flag for flag in wanted if _takes(path, flag))


def _takes(path: str, *flags: str) -> bool:
    command = [path, *flags, "-fsyntax-only", "-x", "c++", os.devnull]
    return not flags or subprocess.run(command, capture_output=True, check=False).returncode == 0


def _processor_flags() -> tuple[str, ...]:
    return tuple(flag for feature, flag in PROCESSOR_FLAGS.items() if feature in processor())


def run_compiler(compiler: Compiler, source: str, scratch: Path) -> Path:
    """Compile one source in `scratch`; the compiler's first messages are in the error if it refuses."""
    text, library = scratch / "unit.cpp", scratch / "unit.so"
    text.write_text(source)
    command = [compiler.path, *compiler.arguments, *compiler.flags, str(text), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join(done.stderr.splitlines()[:20])
        raise CompileFailed(f"{compiler} ended with {done.returncode}:\n{said}")
    return library
