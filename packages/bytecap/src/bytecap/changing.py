"""Numbers that differ from call to call, and would make a new capture each time.

A float that was an argument once, and any number that was fixed several times, is not fixed again: the captures that
follow leave what uses it to the plain code around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bytecap.errors import ChangingNumber
from bytecap.guards import print_source
from bytecap.hook import Entry, FrameView
from bytecap.values.opaque import UnknownValue
from stagewire.capture import Equals, Local, Source

_NUMBERS = (int, float)
# How many captures a number is fixed in, at most.
_PATIENCE = 4


def changed_number(known: Sequence[Entry], view: FrameView) -> Source | None:
    """Where the number is that alone makes the last capture miss, if it changes too often."""
    failure = known[0].guard.failure(view) if known else None
    if failure is None:
        return None
    index, found, value = failure
    guards = known[0].guard.guards
    if not found or index not in range(len(guards)):
        return None
    match guards[index]:
        case Equals(source, before) if type(before) is type(value) and is_number(value):
            once = isinstance(source, Local) and type(value) is float
            return source if once or len(known) >= _PATIENCE else None
    return None


def is_number(real: Any) -> bool:
    """Whether the object is of a kind that may be left open."""
    return type(real) in _NUMBERS


def unknown_number(real: Any, source: Source) -> UnknownValue:
    """The number at `source` as one of any value."""
    why = f"{print_source(source)} differs from call to call (now {real!r})"
    return UnknownValue(real, source, why, ChangingNumber)
