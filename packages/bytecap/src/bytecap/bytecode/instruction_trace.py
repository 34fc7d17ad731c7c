"""The way of a captured frame through its own instructions, so that a second evaluation can stop where it likes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bytecap.evaluator.frame import Frame


class Trail:
    """Which instructions the frame came to, in order, and where its stack was empty.

    limit: the count of instructions after which it stops, before the next one; None for no stop.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.indices: list[int] = []
        self.bare: list[int] = []

    def reaches_limit(self, frame: Frame) -> bool:
        """Note the instruction that is next; True to stop before it."""
        if len(self.indices) == self.limit:
            return True
        if not frame.stack:
            self.bare.append(len(self.indices))
        self.indices.append(frame.pc)
        return False

    def stops(self, first: int) -> Iterator[int]:
        """Where to stop for a break at the last instruction: there, and where that cannot be, earlier and earlier.

        first: the count from which the frame can be left at all.
        """
        last = len(self.indices) - 1
        yield max(last, first)
        earlier = [count for count in self.bare if first < count < last]
        while earlier:
            yield earlier[-1]
            del earlier[len(earlier) // 2 :]
        yield first
