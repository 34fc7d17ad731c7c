"""What code a stage is: a cache key must change when the code of a stage does, also between two releases.

An installed distribution lists the hash of each of its files (RECORD): that list is hashed. Sources that are run in
place (a checkout) have none: the sizes and times of their files are hashed.
"""

from __future__ import annotations

import hashlib
import importlib.util
from functools import cache
from importlib import metadata
from pathlib import Path

SUFFIXES = frozenset((".py", ".h", ".json"))


@cache
def fingerprint(package: str) -> str:
    """16 hexadecimal digits for the code of a top-level package, "" for one without files (typed at a prompt)."""
    spec = importlib.util.find_spec(package) if package != "__main__" else None
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
