"""Values that differ from call to call, and would make a new capture each time.

A float that was an argument once, a number that the code itself counts up, and any number, text or size of a container
that was fixed several times, is not fixed again: the captures that follow leave what uses it to the plain code around
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from bytecap.errors import ChangingNumber
from bytecap.guards import print_source
from bytecap.hook import Entry, FrameView
from stagewire.capture import Equals, Guard, HasKey, IdentityIs, KeysAre, LengthIs, Local, Source, TypeIs, TypeOf

_KINDS = (int, float, str)
# How many captures a code object has, at most, before values that differ are left open.
_PATIENCE = 4


def changed_value(known: Sequence[Entry], view: FrameView, counted: frozenset[Source], limit: int) -> Source | None:
    """Where the value is that alone makes the last capture miss, if it changes too often.

    counted: where the numbers are that the last capture itself counts up. limit: of captures; the last of them leaves
    open what object an argument is.
    """
    first = _missed(known[0], view) if known else None
    if first is None:
        return None
    source, value = first
    if isinstance(source, TypeOf):
        return source if len(known) == limit - 1 else None
    if source in counted or (isinstance(source, Local) and type(value) is float):
        return source
    return source if len(known) >= _PATIENCE else None


def _missed(entry: Entry, view: FrameView) -> tuple[Source, Any] | None:
    """(place, value now) of the first guard that fails, if it fixes a value of a kind that may be left open."""
    failure = None if entry.guard is None else entry.guard.failure(view)
    if failure is None:
        return None
    index, found, value = failure
    guards: Sequence[Guard] = entry.guard.guards
    if not found or index not in range(len(guards)):
        return None
    match guards[index]:
        case Equals(source, before) if type(before) is type(value) and type(value) in _KINDS:
            return source, value
        case TypeIs(Local() as source) | IdentityIs(Local() as source) if not isinstance(value, torch.Tensor):
            return TypeOf(source), value
        case LengthIs(source) | KeysAre(source) | HasKey(source):
            return source, value
    return None


def refuse_changing(source: Source, real: Any, what: str = "") -> NoReturn:
    """Refuse to fix what is at `source`, or `what` of it."""
    now = "" if what else f" (now {real!r})"
    raise ChangingNumber(f"{what}{print_source(source)} differs from call to call{now}")
