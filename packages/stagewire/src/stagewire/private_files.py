"""Directories that nobody else can write, and files in them that are bound to their key.

entry ::= data, sha256(key + data)        the digest behind: the dynamic linker takes a library so where it lies

What is read back is run: programs hold source of machine code. So an entry is only as trustworthy as its directory,
and a directory that belongs to another user, or that others can write, is refused.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
import warnings
from functools import lru_cache
from pathlib import Path

_ROOT = 0
_DIGEST = 32
_HOUR = 3600.0
_PREFIX, _HELD = "stagefold-", "held"


class CacheWarning(UserWarning):
    """A cache that is not used, or an entry of it that was ignored."""


class NotPrivate(PermissionError):
    """A directory that others can write; the message says who."""


class DamagedEntry(ValueError):
    """A file whose bytes are not those that were written under its key."""


def private_directory(path: str | Path) -> Path:
    """The directory at `path`, without symbolic links; made for this user alone where it is not there.

    Raises `OSError` where it cannot be made, and `NotPrivate` where it belongs to another user than this one or root,
    where others can write it, or where others can put another in its place.
    """
    path = Path(os.path.abspath(path))
    absent = [path, *path.parents][: next(n for n, one in enumerate((path, *path.parents)) if os.path.lexists(one))]
    for directory in reversed(absent):
        directory.mkdir(mode=0o700, exist_ok=True)
    path = path.resolve(strict=True)
    fault = _fault(path)
    if fault is not None:
        raise NotPrivate(errno.EPERM, fault, str(path))
    return path


def _fault(directory: Path) -> str | None:
    """Why what is read from a directory may have been written by somebody else."""
    user, found = os.geteuid(), directory.stat()
    if not stat.S_ISDIR(found.st_mode):
        return "it is no directory"
    if found.st_uid not in (user, _ROOT):
        return f"it belongs to user {found.st_uid}, not to user {user}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write it (mode {stat.S_IMODE(found.st_mode):04o}); chmod go-w it if its files are yours"
    for parent in directory.parents:
        above = parent.stat()
        shared = above.st_mode & stat.S_IWOTH or (above.st_mode & stat.S_IWGRP and above.st_gid != os.getegid())
        if shared and not above.st_mode & stat.S_ISVTX:
            return f"others can replace it, since they can write {parent} (mode {stat.S_IMODE(above.st_mode):04o})"
    return None


def usable_directory(path: str | Path | None, what: str) -> Path:
    """The private directory at `path`; without a path, or (with a warning) where it cannot be used, one that ends with
    this process. what: is kept there, for the warning."""
    if path is None:
        return temporary_directory()
    try:
        return private_directory(path)
    except OSError as error:
        instead = temporary_directory()
        reason = error.strerror if error.filename is None else f"{error.strerror} ({error.filename})"
        message = f"{what} is not kept in the cache {path}: {reason}; it is in {instead} until this process ends"
        warnings.warn(message, CacheWarning, stacklevel=3)
        return instead


def temporary_directory() -> Path:
    """A private directory that ends with this process; a forked process has one of its own.

    The first removes those that killed processes of this user have left.
    """
    return private_directory(_temporary_of(os.getpid())[0])


@lru_cache(maxsize=1)
def _temporary_of(process: int) -> tuple[Path, int]:
    """The directory, and an open file in it that is locked for as long as the process lives."""
    _sweep(Path(tempfile.gettempdir()))
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    held = os.open(path / _HELD, os.O_RDWR | os.O_CREAT, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks, where nothing is swept
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    atexit.register(_remove, path, process)
    return path, held


def _sweep(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is in use, another user's, or gone
            if _fault(path) is None:
                with open(path / _HELD, "r+") as held:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # else a child, which runs what its parent had registered
        shutil.rmtree(path, ignore_errors=True)


def seal(key: str, data: bytes) -> bytes:
    """A digest of data under a key: the same data under another key has another one."""
    return hashlib.sha256(b"%d:%b" % (len(key), key.encode()) + data).digest()


def read_entry(path: Path, key: str) -> bytes | None:
    """What was written to `path` under `key`; None where nothing was.

    Raises `DamagedEntry` where it is no longer that, and `OSError` (`NotPrivate` among them) where it cannot be read.
    """
    if not path.parent.is_dir():
        return None
    try:
        path = private_directory(path.parent) / path.name
        held = path.read_bytes()
    except FileNotFoundError:
        return None
    data, digest = held[:-_DIGEST], held[-_DIGEST:]
    if seal(key, data) != digest:
        raise DamagedEntry(f"{path} is not what was written under its key (truncated, changed or moved)")
    note_use(path)
    return data


def note_use(path: Path) -> None:
    """Have the time of a file tell when it was used last, by the hour: what is used least recently is evicted first."""
    with contextlib.suppress(OSError):  # a cache that is only read
        if time.time() - path.stat().st_mtime > _HOUR:
            os.utime(path)


def write_entry(path: Path, key: str, data: bytes) -> None:
    """Write data under a key, at once for whoever reads it. Raises `OSError`, and leaves nothing behind then."""
    replace_file(private_directory(path.parent) / path.name, data + seal(key, data))


def replace_file(path: Path, data: bytes) -> None:
    """Put a file with this content at `path`, at once for whoever reads it. Raises `OSError`, and leaves nothing."""
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
