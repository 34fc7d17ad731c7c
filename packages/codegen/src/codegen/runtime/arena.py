"""Offsets in one block of memory for buffers that live at different times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stagewire.expr import Dim

ALIGNMENT = 64
STAGGER = 320
"""Bytes left free after a buffer: sizes are often powers of two, and equal places in a page share cache sets."""


class Lifetime(NamedTuple):
    """`size` bytes needed from instruction `start` to instruction `end`, both included."""

    name: str
    size: Dim
    start: int
    end: int


def place(lifetimes: Sequence[Lifetime]) -> tuple[dict[str, int], int]:
    """Byte offsets by name, and the size of the block; largest first, each at the lowest free place.

    >>> place([Lifetime("a", 100, 0, 1), Lifetime("b", 40, 2, 3), Lifetime("c", 8, 1, 2)])
    ({'a': 0, 'b': 0, 'c': 448}, 456)
    """
    placed: list[tuple[Lifetime, int]] = []
    total = 0
    for one in sorted(lifetimes, key=lambda x: (-x.size, x.start, x.name)):
        offset = 0
        neighbours = [(at, other.size) for other, at in placed if other.start <= one.end and one.start <= other.end]
        for at, size in sorted(neighbours):
            if at - offset >= one.size:
                break
            offset = max(offset, -(-(at + size + STAGGER) // ALIGNMENT) * ALIGNMENT)
        placed.append((one, offset))
        total = max(total, offset + one.size)
    return {one.name: offset for one, offset in placed}, total
