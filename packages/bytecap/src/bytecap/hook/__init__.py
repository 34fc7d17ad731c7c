"""The frame hook: whose frames are captured, and what runs in their place.

    capture  ::= owner (mark entry*)*
    owner    ::= Owner(callback, recursive)      one compile()d callable
    mark     ::= code enabled | skipped | disabled
    entry    ::= Entry(guard, code, payload)     replacement code that is right while guard holds
    scope    ::= call_with_owner(owner, fn, ...) the owner captures while fn runs, in this thread

While an owner's scope is active and a frame of a code that is enabled for it starts, the entries
of (code, owner) are tried, the one that hit last first. If none holds, `callback(frame_view)` is
asked: an `Entry` is kept and run, None runs the frame plain, False too, with nothing captured
under it. Below a frame of the owner nothing more is captured, unless the owner is `recursive`:
then every fresh frame in the scope is asked for, marked or not, save the skipped and disabled
ones. Frames of generators and coroutines run plain.

The hook is in place only while some thread is inside a scope; during a callback nobody captures
in that thread. An owner holds its entries: dropping the owner drops them.

Example:
    >>> import types
    >>> def f(x): return x + 1
    >>> def twice(x): return x * 2
    >>> owner = Owner(lambda view: Entry(None, twice.__code__))
    >>> enable(f.__code__, owner)
    >>> call_with_owner(owner, f, 5), f(5)
    (10, 6)

`INPUTS` names the local of replacement code that gets the tuple of its guard program's inputs.
"""

from __future__ import annotations

from bytecap._evalframe import (
    INPUTS,
    Dispatcher,
    Entry,
    FrameView,
    Owner,
    active_owner,
    call_with_owner,
    disable,
    enable,
    entries,
    has_upcoming,
    hook_installed,
    iterated,
    remove_entry,
    reset,
    set_capturing,
    skip,
    status,
    upcoming,
)

__all__ = [
    "INPUTS", "Dispatcher", "Entry", "FrameView", "Owner", "active_owner", "call_with_owner", "disable", "enable",
    "entries", "has_upcoming", "hook_installed", "iterated", "plain", "remove_entry", "reset", "set_capturing", "skip",
    "status", "upcoming",
]  # fmt: skip


def plain(fn: object) -> Dispatcher:
    """A callable that runs `fn` with nobody capturing: for what a replacement calls at run time."""
    return Dispatcher(None, fn)
