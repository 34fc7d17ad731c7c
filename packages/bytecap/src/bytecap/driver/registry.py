"""The compiled callables of the process, so that `reset()` finds them. Nothing is kept alive here."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Resettable(Protocol):
    """Something that can drop what it compiled."""

    def reset(self) -> None: ...

    def forget_other_threads(self) -> None: ...


_KNOWN: weakref.WeakValueDictionary[int, Resettable] = weakref.WeakValueDictionary()
"""By their addresses. (Threads may add to it while another one walks it, which a WeakSet does not bear.)"""


def register(item: Resettable) -> None:
    """Let `reset()` know of a compiled callable."""
    _KNOWN[id(item)] = item


def reset() -> None:
    """Drop all compiled versions of all compiled callables; the next call of each compiles anew."""
    for item in _known():
        item.reset()


def _known() -> list[Resettable]:
    return [item for reference in _KNOWN.valuerefs() if (item := reference()) is not None]


def _after_fork() -> None:
    for item in _known():
        item.forget_other_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
