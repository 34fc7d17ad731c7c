"""What goes from a full cache: entries that were not used for long, then those used least recently; and leftovers.

    entry ::= the files of one directory with one name, whatever their suffix; used when the latest of them was

Another process that is about to read an entry which goes makes it again.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDERS = ("programs", "code", "broken")
"""Of a cache; nothing else in its directory is looked at."""

_STAMP = "pruned"
_HOUR, _DAY = 3600.0, 86400.0


class Limits(NamedTuple):
    """size: bytes. days: since the last use."""

    size: int = 8_192_000_000
    days: float = 90


DEFAULT_LIMITS = Limits()


class Entry(NamedTuple):
    """used: seconds since the epoch; size: bytes."""

    used: float
    size: int
    paths: tuple[Path, ...]


def entries_of(directory: Path) -> list[Entry]:
    """The entries of a cache, those used least recently first."""
    groups: dict[Path, list[tuple[Path, float, int]]] = {}
    for path in _paths(directory):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if not path.is_file() or _is_leftover(path):
                continue
            found = path.stat()
            groups.setdefault(path.with_suffix(""), []).append((path, found.st_mtime, found.st_size))
    made = (
        # The record goes first: an entry without one was never finished.
        Entry(max(used for _, used, _ in rows), sum(size for _, _, size in rows), tuple(sorted(p for p, _, _ in rows)))
        for rows in groups.values()
    )
    return sorted(made)


def _paths(directory: Path) -> Iterator[Path]:
    return (path for folder in FOLDERS for path in (directory / folder).rglob("*"))


def _is_leftover(path: Path) -> bool:
    """Whether it is of an operation that is under way, or whose process was killed."""
    return path.suffix in (".part", ".lock") or any(part.startswith("build-") for part in path.parts)


def is_due(directory: Path) -> bool:
    """Whether nobody has pruned a cache in the last hour; from now on somebody has."""
    stamp = directory / _STAMP
    with contextlib.suppress(FileNotFoundError):
        if time.time() - stamp.stat().st_mtime < _HOUR:
            return False
    stamp.touch()
    return True


def prune(directory: Path, limits: Limits) -> tuple[int, int]:
    """Remove what is beyond the limits, and leftovers of more than an hour; how many entries and bytes are gone.

    Raises `OSError` where that cannot be done.
    """
    now = time.time()
    for path in _paths(directory):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if _is_leftover(path) and now - path.stat().st_mtime > _HOUR:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    entries = entries_of(directory)
    total, count, size = sum(entry.size for entry in entries), 0, 0
    for entry in entries:
        if total - size <= limits.size and now - entry.used <= limits.days * _DAY:
            break
        for path in entry.paths:
            path.unlink(missing_ok=True)
        count, size = count + 1, size + entry.size
    return count, size
