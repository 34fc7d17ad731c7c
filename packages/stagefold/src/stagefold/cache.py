"""The on-disk cache: programs by content.

    entry ::= the encoded Program document, sealed with its key (`stagewire.private_files`)

The key is a digest over the captured graph, the stages with versions and options, the versions of torch and Python and
the machine. Writes are atomic. A truncated, corrupt or foreign entry, or one under another key than it was written
under, is ignored with a warning, never executed.

artifacts ::= a zip archive of cache entries: programs/<key>.program, code/<key>.{so, cubins, ...}

These are what a process compiled, as bytes that another machine of the same kind puts into its cache. Machine code is
among them, and is run as it is read: load only what you saved (SECURITY.md). Keys hold the processor, the versions and
the options, so what was made on another kind of machine is never looked up.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import io
import platform
import re
import sys
import time
import warnings
import zipfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from msgspec.structs import replace

from absint.cpu_kernels import cpu_kernels
from absint.forms.attention import allowed_kernels
from absint.targets import resolve
from stagefold.eviction import DEFAULT_LIMITS, Limits, entries_of, is_due, prune
from stagefold.options import default_cache_dir
from stagewire import private_files
from stagewire.capture import Capture, Input, Local, facts_of
from stagewire.codec import decode, encode
from stagewire.digest import digest
from stagewire.errors import StageError
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
        replace(symbol, source=None, hint=hint) for symbol, hint in zip(capture.symbols, hints, strict=True)
    )
    bare = replace(capture, guards=facts_of(capture), inputs=inputs, symbols=symbols)
    schemas = sorted(str(operator._schema) for operator in custom_operators(capture))
    state = f"threads={torch.get_num_threads()}", f"attention={allowed_kernels()}"
    text = "\n".join((digest(bare), pipeline, machine(), *state, *schemas))
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
        return private_files.usable_directory(self.directory, "what stagefold compiles")

    def code_directory(self) -> Path:
        """Where machine code is kept."""
        return self.home / "code"

    def path(self, key: str) -> Path:
        return self.home / "programs" / key[:2] / f"{key}.program"

    def read(self, key: str) -> Program | None:
        """The program under `key`, or None."""
        path = self.path(key)
        try:
            data = private_files.read_entry(path, key)
            program = None if data is None else decode(data, expect="program")
        except (OSError, private_files.DamagedEntry, StageError) as error:
            reason = error.message if isinstance(error, StageError) else str(error)
            message = f"ignored the cache entry {path}: {reason}; it is made anew"
            warnings.warn(message, private_files.CacheWarning, stacklevel=2)
            return None
        assert program is None or isinstance(program, Program)
        return program

    def write(self, key: str, program: Program) -> None:
        """Store atomically; a cache that cannot be written is a warning, not an error."""
        path = self.path(key)
        try:
            private_files.write_entry(path, key, encode(program, "msgpack"))
            if is_due(self.home):
                prune(self.home, self.limits)
        except OSError as error:
            warnings.warn(
                f"stagefold cannot write its cache at {path}: {error}", private_files.CacheWarning, stacklevel=2
            )


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


_FOLDERS = ("programs", "code")
_NAME = re.compile(rf"({'|'.join(_FOLDERS)})(/[0-9a-zA-Z_-]+)?/[0-9a-zA-Z_-][0-9a-zA-Z._-]*")
_STARTED = time.time()
_HOUR = 3600.0  # by which the time of an entry tells when it was used last


class CacheInfo(NamedTuple):
    """The entries of artifacts, by their names in the cache: programs, and machine code."""

    programs: tuple[str, ...]
    code: tuple[str, ...]


def save_cache_artifacts(cache_dir: str | Path | None = None) -> tuple[bytes, CacheInfo] | None:
    """What this process has compiled or read from the cache (and others within the hour before it), as bytes.

    cache_dir: that of the programs, where it is not the default. None where nothing was compiled.
    """
    home = Cache(Path(cache_dir or default_cache_dir())).home
    used = [path for entry in entries_of(home) if entry.used > _STARTED - _HOUR for path in entry.paths]
    names = {path.relative_to(home).as_posix(): path for path in used}
    found = {name: path for name, path in sorted(names.items()) if _NAME.fullmatch(name)}
    if not found:
        return None
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in found.items():
            archive.writestr(name, path.read_bytes())
    return packed.getvalue(), _info(list(found))


def load_cache_artifacts(artifacts: bytes, cache_dir: str | Path | None = None) -> CacheInfo | None:
    """Put what `save_cache_artifacts` gave into the cache; None, with a warning, where these are no such bytes.

    Entries that are there already stay as they are. Never load what a stranger gave you: it is machine code.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(artifacts)) as archive:
            found = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        return _refuse(str(error))
    strange = [name for name in found if not _NAME.fullmatch(name)]
    if strange:
        return _refuse(f"{strange[0]!r} is no entry of a cache")
    home = Cache(Path(cache_dir or default_cache_dir())).home
    for name, data in found.items():
        path = private_files.private_directory((home / name).parent) / Path(name).name
        if not path.exists():
            private_files.replace_file(path, data)
    return _info(list(found))


def _info(names: list[str]) -> CacheInfo:
    programs, code = (tuple(name for name in names if name.startswith(folder)) for folder in _FOLDERS)
    return CacheInfo(programs, code)


def _refuse(why: str) -> None:
    warnings.warn(f"these are no artifacts of stagefold's cache: {why}", private_files.CacheWarning, stacklevel=3)
