"""A broken constraint: its label, what is wrong, where in the document, and at which sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

Path = tuple[str | int, ...]


NO_SIZES: Mapping[str, int] = MappingProxyType({})


class Fault(NamedTuple):
    """sizes: the values of the symbols with which it is so; none where it is so with any."""

    label: str
    message: str
    path: Path
    sizes: Mapping[str, int] = NO_SIZES


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
