"""Files that are kept by content: written atomically, and ignored where they are damaged.

Each is bound to its name, which is the digest of what it was made from (see `stagewire.private_files`).
"""

from __future__ import annotations

import warnings
from pathlib import Path

from codegen.errors import CorruptCode
from stagewire.private_files import CacheWarning, DamagedEntry, read_entry, write_entry

FORMAT = "digest behind"
"""Part of keys: entries of earlier versions, which are laid out otherwise, are not looked at."""


def read_stored(path: Path) -> bytes | None:
    """What was written to `path`; None, with a warning, where it is no longer that or cannot be read."""
    try:
        return read_entry(path, path.name)
    except DamagedEntry as error:
        warnings.warn(f"{error}: ignored and made again", CorruptCode, stacklevel=4)
    except OSError as error:
        warnings.warn(f"{path} cannot be read: {error}; it is made again", CacheWarning, stacklevel=4)
    return None


def write_stored(path: Path, data: bytes) -> None:
    """Write `data` to `path`, at once for whoever reads it; a file that cannot be written is a warning."""
    try:
        write_entry(path, path.name, data)
    except OSError as error:
        warnings.warn(f"{path} cannot be written: {error}; it is made again by others", CacheWarning, stacklevel=4)
