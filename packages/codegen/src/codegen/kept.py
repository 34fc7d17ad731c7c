"""Files that are kept by content: written atomically, and ignored where they are damaged.

file ::= sha256 of the rest, the rest
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from pathlib import Path

from codegen.errors import CorruptCode

_DIGEST = 32


def read_kept(path: Path) -> bytes | None:
    """What was written to `path`; None, with a warning, where it is no longer that."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
        warnings.warn(f"{path} is damaged: ignored and made again", CorruptCode, stacklevel=4)
        return None
    return data[_DIGEST:]


def write_kept(path: Path, data: bytes) -> None:
    """Write `data` to `path`, at once for whoever reads it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(handle, "wb") as file:
        file.write(hashlib.sha256(data).digest() + data)
    os.replace(part, path)
