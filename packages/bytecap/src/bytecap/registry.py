"""The compiled callables of the process, so that `reset()` finds them. Nothing is kept alive here."""

from __future__ import annotations

import weakref
from typing import Protocol


class Resettable(Protocol):
    """Something that can drop what it compiled."""

    def reset(self) -> None: ...


_KNOWN: weakref.WeakSet[Resettable] = weakref.WeakSet()


def register(item: Resettable) -> None:
    """Let `reset()` know of a compiled callable."""
    _KNOWN.add(item)


def reset() -> None:
    """Drop all compiled versions of all compiled callables; the next call of each compiles anew."""
    for item in tuple(_KNOWN):
        item.reset()
