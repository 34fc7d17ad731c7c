"""What a process compiled as bytes that another machine of the same kind puts into its cache.

artifacts ::= a zip archive of cache entries: programs/<key>.program, code/<key>.{so, cubins, ...}

Machine code is among them, and is run as it is read: load only what you saved (SECURITY.md). Keys hold the processor,
the versions and the options (`stagefold.cache`), so what was made on another kind of machine is never looked up.
"""

from __future__ import annotations

import io
import re
import time
import warnings
import zipfile
from pathlib import Path
from typing import NamedTuple

from stagefold.cache import Cache
from stagefold.eviction import entries_of
from stagefold.options import default_cache_dir
from stagewire.private_files import CacheWarning, private_directory, replace_file

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
        path = private_directory((home / name).parent) / Path(name).name
        if not path.exists():
            replace_file(path, data)
    return _info(list(found))


def _info(names: list[str]) -> CacheInfo:
    programs, code = (tuple(name for name in names if name.startswith(folder)) for folder in _FOLDERS)
    return CacheInfo(programs, code)


def _refuse(why: str) -> None:
    warnings.warn(f"these are no artifacts of stagefold's cache: {why}", CacheWarning, stacklevel=3)
