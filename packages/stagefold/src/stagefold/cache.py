"""The on-disk cache: programs by content.

    entry ::= 32 bytes sha256 of the rest, then the encoded Program document

The key is a digest over the captured graph, the stages with versions and options, the versions of torch and Python and
the machine. Writes are atomic. A truncated, corrupt or foreign entry is ignored with a warning, never executed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import sys
import tempfile
import warnings
from functools import lru_cache
from pathlib import Path

import msgspec
import torch

from stagefold.errors import CacheWarning
from stagewire.capture import Capture, Input, Local, facts_of
from stagewire.codec import decode, encode
from stagewire.digest import digest
from stagewire.errors import StageError
from stagewire.program import Program
from stagewire.types import TensorType


@lru_cache(maxsize=1)
def machine() -> str:
    """What generated code depends on: processor features, operating system, Python and torch."""
    features = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(errors="replace").splitlines()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), features)
    return "|".join((platform.machine(), sys.platform, features, sys.version, torch.__version__))


def program_key(capture: Capture, pipeline: str, *, at_its_sizes: bool = True) -> str:
    """The key of the program for `capture`: sources and guards do not count, types, roles and calls do.

    Conditions on symbols count. So does what the symbols are worth, unless `at_its_sizes` is False: a program under
    such a key was made at other sizes, and is right where its own assumptions hold (on a CUDA device sizes count by
    powers of two, for which tiles are chosen).
    """
    inputs = tuple(Input(item.value, Local(""), item.role) for item in capture.inputs)
    hint_of = _exact if at_its_sizes else _rounded if is_on_gpu(capture) else _none
    symbols = tuple(
        msgspec.structs.replace(symbol, source=None, hint=hint_of(symbol.hint)) for symbol in capture.symbols
    )
    bare = msgspec.structs.replace(capture, guards=facts_of(capture), inputs=inputs, symbols=symbols)
    text = "\n".join((digest(bare), pipeline, machine(), f"threads={torch.get_num_threads()}"))
    return hashlib.sha256(text.encode()).hexdigest()


def _exact(hint: int | None) -> int | None:
    return hint


def _rounded(hint: int | None) -> int | None:
    return None if hint is None else 1 << max(hint - 1, 0).bit_length()


def _none(hint: int | None) -> int | None:
    return None


def is_on_gpu(capture: Capture) -> bool:
    """Whether one of its inputs is."""
    types = [item.value.type for item in capture.inputs]
    return any(isinstance(type_, TensorType) and type_.device.startswith("cuda") for type_ in types)


@dataclasses.dataclass(frozen=True)
class Cache:
    """Programs under `directory`/programs; machine code is kept by codegen under `directory`/code."""

    directory: Path

    def code_directory(self) -> Path | None:
        """Where machine code is kept; None (codegen then takes a temporary directory), with a warning, if it cannot be
        written."""
        directory = self.directory / "code"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if os.access(directory, os.W_OK):
                return directory
            reason = "no permission to write"
        except OSError as error:
            reason = str(error)
        warnings.warn(f"stagefold keeps no machine code at {directory}: {reason}", CacheWarning, stacklevel=2)
        return None

    def path(self, key: str) -> Path:
        return self.directory / "programs" / key[:2] / f"{key}.program"

    def read(self, key: str) -> Program | None:
        """The program under `key`, or None."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._ignore(path, str(error))
            return None
        if len(data) < 32 or hashlib.sha256(data[32:]).digest() != data[:32]:
            self._ignore(path, "its checksum does not match (truncated or corrupted)")
            return None
        try:
            program = decode(data[32:], expect="program")
        except StageError as error:
            self._ignore(path, error.message)
            return None
        assert isinstance(program, Program)
        return program

    def write(self, key: str, program: Program) -> None:
        """Store atomically; a cache that cannot be written is a warning, not an error."""
        body = encode(program, "msgpack")
        path = self.path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(body).digest() + body)
            os.replace(part, path)
        except OSError as error:
            warnings.warn(f"stagefold cannot write its cache at {path}: {error}", CacheWarning, stacklevel=2)

    def _ignore(self, path: Path, reason: str) -> None:
        warnings.warn(f"ignored the cache entry {path}: {reason}; it is made anew", CacheWarning, stacklevel=3)
