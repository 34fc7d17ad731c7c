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
ones. Generators and coroutines run plain.

The hook is in place only while some thread is inside a scope; during a callback or a guard
written in Python nobody captures in that thread. An owner holds its entries: dropping the owner
drops them.

Example:
    >>> import types
    >>> def f(x): return x + 1
    >>> def twice(x): return x * 2
    >>> owner = Owner(lambda view: Entry(None, twice.__code__))
    >>> enable(f.__code__, owner)
    >>> call_with_owner(owner, f, 5), f(5)
    (10, 6)
"""

from __future__ import annotations

from types import CodeType

from bytecap import _evalframe
from bytecap._evalframe import (
    Dispatcher,
    Entry,
    FrameView,
    Owner,
    active_owner,
    call_with_owner,
    hook_installed,
    set_capturing,
)

INPUTS = _evalframe.INPUTS
"""The local of replacement code that gets the tuple of its guard program's inputs."""

__all__ = [
    "INPUTS",
    "Dispatcher",
    "Entry",
    "FrameView",
    "Owner",
    "active_owner",
    "call_with_owner",
    "disable",
    "enable",
    "entries",
    "forget",
    "hook_installed",
    "plain",
    "remove_entry",
    "reset",
    "set_capturing",
    "skip",
    "status",
]


def enable(code: CodeType, owner: Owner) -> None:
    """Captures frames of `code` inside scopes of `owner`; takes a skip mark back."""
    _evalframe.enable(code, owner)


def skip(code: CodeType, owner: Owner) -> None:
    """Runs frames of `code` plain for ever, for this owner; what they call may still be captured."""
    _evalframe.skip(code, owner)


def forget(code: CodeType, owner: Owner) -> None:
    """Takes the enabled or skipped mark of `code` away; its entries stay and are not tried."""
    _evalframe.forget(code, owner)


def disable(code: CodeType, flag: bool = True) -> None:
    """Nobody captures `code`, nor anything that it calls, while `flag` stands."""
    _evalframe.disable(code, flag)


def entries(code: CodeType, owner: Owner | None = None) -> tuple[Entry, ...]:
    """The entries of `code` for `owner` (None: of all owners), the one that hit last first."""
    return _evalframe.entries(code, owner)


def reset(code: CodeType, owner: Owner | None = None) -> None:
    """Drops entries and skip marks of `code`. Frames that run an entry finish undisturbed."""
    _evalframe.reset(code, owner)


def remove_entry(code: CodeType, entry: Entry) -> bool:
    """Drops one entry; says whether it was there."""
    return _evalframe.remove_entry(code, entry)


def status(code: CodeType, owner: Owner) -> str:
    """ "unmarked", "enabled", "skipped" or "disabled"."""
    return _evalframe.status(code, owner)


def plain(fn: object) -> Dispatcher:
    """A callable that runs `fn` with nobody capturing: for what a replacement calls at run time."""
    return Dispatcher(None, fn)
