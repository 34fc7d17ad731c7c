"""A broken constraint: its label, what is wrong, and where in the document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

Path = tuple[str | int, ...]


class Fault(NamedTuple):
    label: str
    message: str
    path: Path


Faults = Iterator[Fault]


def duplicates(names: Iterable[str]) -> list[tuple[int, str]]:
    """Position and name of every name that stood before, or is empty."""
    seen: set[str] = set()
    found: list[tuple[int, str]] = []
    for position, name in enumerate(names):
        if not name or name in seen:
            found.append((position, name))
        seen.add(name)
    return found
