"""What a test's process recorded in a directory (option "trace_dir")."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from stagefold import Capsule


def traced(directory: Path, form: str) -> list[Any]:
    """The documents of a form, in the order in which they were made."""
    (path,) = directory.glob("*.capsule")
    capsule = Capsule(path)
    return [capsule.document(run, form) for run in capsule.runs if form in run.digests]


def unpacked(directory: Path) -> Path:
    """The folder of the one program that was compiled, with a file for each document."""
    (path,) = directory.glob("*.capsule")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(directory)
    (run,) = directory.glob("0*")
    return run
