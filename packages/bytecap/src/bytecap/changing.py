"""Numbers that differ from call to call, and would make a new capture each time.

A float that an argument was, or an int that it was several times, is not fixed again: the captures that follow leave
what uses it to the plain code around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bytecap.errors import ChangingNumber
from bytecap.hook import Entry, FrameView
from bytecap.values.opaque import UnknownValue
from stagewire.capture import Equals, Local, TypeIs

# How many captures a number is fixed in, at most.
_PATIENCE: dict[type, int] = {float: 1, int: 4}


def changed_number(known: Sequence[Entry], view: FrameView) -> str | None:
    """The argument whose value is all that the last capture misses, if it is a number that changes too often."""
    failure = known[0].guard.failure(view) if known else None
    if failure is None:
        return None
    index, found, value = failure
    guards = known[0].guard.guards
    if not found or index not in range(len(guards)):
        return None
    match guards[index]:
        case Equals(Local(name), before) if type(before) is type(value) and len(known) >= _patience(value):
            return name
    return None


def _patience(value: Any) -> float:
    return _PATIENCE.get(type(value), float("inf"))


def as_unknown(real: Any, name: str) -> tuple[UnknownValue, TypeIs]:
    """The argument `name` as a number of any value, and the guard that it is one."""
    source = Local(name)
    why = f"{name} differs from call to call (now {real!r})"
    return UnknownValue(real, source, why, ChangingNumber), TypeIs(source, f"builtins.{type(real).__name__}")
