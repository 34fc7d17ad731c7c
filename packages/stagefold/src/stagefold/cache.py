"""The on-disk cache: programs by content.

    entry ::= the encoded Program document, sealed with its key (`stagewire.private_files`)

The key is a digest over the captured graph, the stages with versions and options, the versions of torch and Python and
the machine. Writes are atomic. A truncated, corrupt or foreign entry, or one under another key than it was written
under, is ignored with a warning, never executed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import platform
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from absint.cpu_kernels import cpu_kernels
from absint.targets import resolve
from stagefold.eviction import DEFAULT_LIMITS, Limits, is_due, prune
from stagewire.capture import Capture, Input, Local, facts_of
from stagewire.codec import decode, encode
from stagewire.digest import digest
from stagewire.errors import StageError
from stagewire.private_files import CacheWarning, DamagedEntry, read_entry, usable_directory, write_entry
from stagewire.program import Program
from stagewire.types import TensorType

if TYPE_CHECKING:
    from torch._ops import OpOverload


@functools.lru_cache(maxsize=1)
def machine() -> str:
    """What programs depend on: processor features, operating system, Python, torch, and what its kernels can do."""
    features = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(errors="replace").splitlines()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), features)
    return "|".join((platform.machine(), sys.platform, features, sys.version, torch.__version__, cpu_kernels()))


def program_key(capture: Capture, pipeline: str, *, at_its_sizes: bool = True) -> str:
    """The key of the program for `capture`: sources and guards do not count, types, roles and calls do.

    Conditions on symbols count. So does what the symbols are worth, unless `at_its_sizes` is False: a program under
    such a key was made at other sizes, and is right where its own assumptions hold (on a CUDA device sizes count by
    powers of two, for which tiles are chosen).
    """
    inputs = tuple(Input(item.value, Local(""), item.role) for item in capture.inputs)
    hints = [symbol.hint for symbol in capture.symbols]
    if not at_its_sizes:
        on_gpu = is_on_gpu(capture)
        hints = [1 << max(hint - 1, 0).bit_length() if on_gpu and hint is not None else None for hint in hints]
    symbols = tuple(
        msgspec.structs.replace(symbol, source=None, hint=hint)
        for symbol, hint in zip(capture.symbols, hints, strict=True)
    )
    bare = msgspec.structs.replace(capture, guards=facts_of(capture), inputs=inputs, symbols=symbols)
    schemas = sorted(str(operator._schema) for operator in custom_operators(capture))
    text = "\n".join((digest(bare), pipeline, machine(), f"threads={torch.get_num_threads()}", *schemas))
    return hashlib.sha256(text.encode()).hexdigest()


def custom_operators(capture: Capture) -> list[OpOverload]:
    """The operators of other libraries than ATen that a capture calls; what they write is no part of the document."""
    bodies = (body for function in capture.functions for body in (function.forward, function.backward))
    graphs = (capture.graph, *(body for body in bodies if body is not None))
    targets = dict.fromkeys(node.target for graph in graphs for node in graph.nodes)
    found: list[OpOverload] = []
    for target in targets:
        match target.removeprefix("torch.ops.").split("."):
            case [namespace, _] if target.startswith("torch.ops.") and namespace not in _OF_TORCH:
                packet: Any = resolve(target)
                found += [getattr(packet, overload) for overload in packet.overloads()]
            case [namespace, _, _] if namespace not in _OF_TORCH:
                found.append(resolve(target))  # type: ignore[arg-type]
    return found


_OF_TORCH = frozenset(("aten", "prims", "torch", "operator", "math"))


def is_on_gpu(capture: Capture) -> bool:
    """Whether one of its inputs is."""
    types = [item.value.type for item in capture.inputs]
    return any(isinstance(type_, TensorType) and type_.device.startswith("cuda") for type_ in types)


@dataclasses.dataclass(frozen=True)
class Cache:
    """Programs under `directory`/programs; machine code is kept by codegen under `directory`/code.

    Both are run as they are read, so a directory that others can write is not used, nor one that cannot be made: the
    cache is then a temporary directory that ends with the process (with a warning).
    """

    directory: Path
    limits: Limits = DEFAULT_LIMITS

    @functools.cached_property
    def home(self) -> Path:
        """Where the cache is: `directory`, or a temporary one."""
        return usable_directory(self.directory, "what stagefold compiles")

    def code_directory(self) -> Path:
        """Where machine code is kept."""
        return self.home / "code"

    def path(self, key: str) -> Path:
        return self.home / "programs" / key[:2] / f"{key}.program"

    def read(self, key: str) -> Program | None:
        """The program under `key`, or None."""
        path = self.path(key)
        try:
            data = read_entry(path, key)
            program = None if data is None else decode(data, expect="program")
        except (OSError, DamagedEntry, StageError) as error:
            reason = error.message if isinstance(error, StageError) else str(error)
            message = f"ignored the cache entry {path}: {reason}; it is made anew"
            warnings.warn(message, CacheWarning, stacklevel=2)
            return None
        assert program is None or isinstance(program, Program)
        return program

    def write(self, key: str, program: Program) -> None:
        """Store atomically; a cache that cannot be written is a warning, not an error."""
        path = self.path(key)
        try:
            write_entry(path, key, encode(program, "msgpack"))
            if is_due(self.home):
                prune(self.home, self.limits)
        except OSError as error:
            warnings.warn(f"stagefold cannot write its cache at {path}: {error}", CacheWarning, stacklevel=2)


SUFFIXES = frozenset((".py", ".h", ".json"))


@functools.cache
def fingerprint(package: str) -> str:
    """16 hexadecimal digits for the code of a top-level package, "" for one without files (typed at a prompt): a key
    must change when the code of a stage does, also between two releases.

    An installed distribution lists the hash of each of its files (RECORD): that list is hashed. Sources that are run in
    place (a checkout) have none: the sizes and times of their files are hashed.
    """
    spec = importlib.util.find_spec(package) if package != "__main__" else None
    if spec is not None and not spec.submodule_search_locations and spec.has_location and spec.origin:
        status = Path(spec.origin).stat()
        return hashlib.sha256(f"{spec.origin} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]
    if spec is None or not spec.submodule_search_locations:
        return ""
    root = Path(next(iter(spec.submodule_search_locations)))
    lines = _recorded(package, root) or _seen(root)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _recorded(package: str, root: Path) -> list[str]:
    """The lines of RECORD for the package, if an installed distribution put it where it is imported from."""
    try:
        distribution = metadata.distribution(f"stagefold-{package}")
    except metadata.PackageNotFoundError:
        return []
    if Path(str(distribution.locate_file(package))) != root:
        return []
    return sorted(
        line for line in (distribution.read_text("RECORD") or "").splitlines() if line.startswith(f"{package}/")
    )


def _seen(root: Path) -> list[str]:
    """Path, size and time of each source file."""
    lines = []
    for path in sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES):
        status = path.stat()
        lines.append(f"{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}")
    return lines
