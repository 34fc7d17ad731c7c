"""Machine code on disk, by what it was made from.

    entry ::= <key>.so        a sealed file (`content_store.py`); key = sha256(source, flags, processor, C library)

A hit starts no compiler. An entry that is damaged, or was made under another key, is ignored with a warning and made
again. Only what has been loaded once is recorded. Where the directory cannot be used or
written, machine code is kept in a temporary one, which ends with the process.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from codegen.content_store import read_stored
from codegen.cpp.compiler import LIMIT, Compilation, code_key, find_compiler, scratch_directory
from codegen.cpp.target import NATIVE, Target
from codegen.errors import CompilerFault, CorruptCode
from stagewire.errors import StageError
from stagewire.private_files import CacheWarning, temporary_directory, usable_directory, write_entry

Compile = Callable[..., Compilation]
"""Begins to compile a source: (source, scratch=directory)."""


def load_code(
    loads: Mapping[str, Callable[[Path], Any]], directory: str | Path | None, target: Target = NATIVE
) -> dict[str, Any]:
    """What each function makes of the shared library of its source. A library that the dynamic linker refuses (it was
    made on a machine with other libraries) is made again, and if need be in a temporary directory."""
    paths = zip(loads, compile_sources(tuple(loads), directory, target), strict=True)
    return {source: _loaded(source, path, loads[source], directory, target) for source, path in paths}


def _loaded(source: str, path: Path, load: Callable[[Path], Any], directory: str | Path | None, target: Target) -> Any:
    places = [directory, None]
    while True:
        try:
            return load(path)
        except OSError as error:
            if not places:
                raise CompilerFault(f"machine code {path} does not load: {error}") from error
            warnings.warn(f"machine code {path} does not load: {error}; it is made again", CorruptCode, stacklevel=4)
        with contextlib.suppress(OSError):  # it is written over then
            path.unlink()
        (path,) = compile_sources([source], places.pop(0), target)


def compile_sources(
    sources: Sequence[str], directory: str | Path | None, target: Target = NATIVE, *, runs: bool = True
) -> list[Path]:
    """Paths of shared libraries for `sources`, in order; misses compile at the same time.

    directory: None for one that ends with this process. runs: whether this process is to run them: a coded error where
    it cannot run code for `target`.
    """
    if runs:
        target.require()
    home = usable_directory(directory, "machine code")
    wanted = {code_key(source, target): source for source in sources}
    found = {key: path for key in wanted if (path := _whole(home, key)) is not None}
    missing = {key: source for key, source in wanted.items() if key not in found}
    if missing and home != temporary_directory():  # made without a cache, or while that could not be written
        made = {key: path for key in missing if (path := _whole(temporary_directory(), key)) is not None}
        found |= {key: _published(home, key, path) for key, path in made.items()}
        missing = {key: source for key, source in missing.items() if key not in found}
    if missing:
        found |= _made(missing, home, partial(Compilation, find_compiler(), target=target))
    return [found[code_key(source, target)] for source in sources]


def _whole(home: Path, key: str) -> Path | None:
    """The shared library of an entry that is there and whole; a damaged one is reported."""
    path = home / f"{key}.so"
    return path if read_stored(path) is not None else None


def _made(missing: Mapping[str, str], home: Path, compile: Compile) -> dict[str, Path]:
    """Compile sources, all at once; every good one is kept, before the first fault is raised."""
    found: dict[str, Path] = {}
    faults: list[StageError] = []
    with contextlib.ExitStack() as stack:
        for key in sorted(missing):  # in one order: no two processes wait for each other
            stack.enter_context(_lock(home, key))
        begun: dict[str, Compilation] = {}
        for key, source in missing.items():
            path = _whole(home, key)  # another process was faster
            if path is not None:
                found[key] = path
                continue
            scratch = stack.enter_context(scratch_directory(temporary_directory()))
            begun[key] = compile(source, scratch=Path(scratch))
            stack.callback(begun[key].end)
        for key, one in begun.items():
            try:
                found[key] = _kept(home, key, one.machine_code())
            except StageError as error:
                faults.append(error)
    if faults:
        raise faults[0]
    return found


def _kept(home: Path, key: str, data: bytes) -> Path:
    """Write an entry; where that fails, write it to the temporary directory, with a warning."""
    temporary = temporary_directory()
    try:
        return write_code(home, key, data)
    except OSError as error:
        if home == temporary:
            raise CompilerFault(f"machine code cannot be written to {home}: {error}") from error
        message = f"machine code is not kept in the cache {home}: {error}; it is in {temporary} until this process ends"
        warnings.warn(message, CacheWarning, stacklevel=6)
    return _kept(temporary, key, data)


def _published(home: Path, key: str, path: Path) -> Path:
    """An entry of the temporary directory, from now on in `home` if that can be written."""
    data = read_stored(path)
    with contextlib.suppress(OSError):
        return path if data is None else write_code(home, key, data)
    return path


def write_code(home: Path, key: str, data: bytes) -> Path:
    """Write an entry: machine code under the key of what it was made from. Raises `OSError`."""
    path = home / f"{key}.so"
    write_entry(path, path.name, data)
    return path


@contextlib.contextmanager
def _lock(home: Path, key: str) -> Iterator[None]:
    """While another process makes the entry of a key, wait for it. Where there is no lock (in a directory that cannot
    be written) or the other does not end, two make it: that costs time, and both make the same."""
    from filelock import FileLock, Timeout  # what is only loaded needs none

    path = home / f"{key}.lock"
    lock = FileLock(str(path))
    with contextlib.suppress(Timeout, OSError):
        lock.acquire(timeout=LIMIT)
    try:
        yield
    finally:
        if lock.is_locked:
            path.unlink(missing_ok=True)
            lock.release()
