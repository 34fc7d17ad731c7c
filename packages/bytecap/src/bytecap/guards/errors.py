"""Coded errors of guards."""

from __future__ import annotations

from stagewire.errors import StageError


class GuardError(StageError):
    """A guard that cannot be compiled: no such value, not a literal, an unknown type or module."""

    code = "BC020"
    fix = "Guard on a value that the frame can reach without running user code."


class GuardDoesNotHold(GuardError):
    """A guard that is false for the very frame it was made from."""

    code = "BC021"
    fix = "The captured code changes the value that the guard reads; report it with the function."
