"""What an optimized callable reports while it works: captures, refusals, the recompile limit.

    event ::= Captured(capture, reason, seconds) | Refused(error) | LimitReached(error)

The same facts reach users without an `on_event` as `CaptureWarning`, each once.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.capture import Capture
from stagewire.errors import StageError


class CaptureWarning(UserWarning):
    """A frame runs plain: the text has the code, the user's line, the cause and the fix."""


@dataclass(frozen=True)
class Captured:
    """A frame was captured and handed to the backend.

    reason: why the earlier captures of the same code did not fit, None for the first. seconds: evaluation and
    guards, without the backend. reused: an earlier capture differs in its guards alone, the backend was not asked.
    """

    capture: Capture
    reason: str | None
    seconds: float
    reused: bool = False


@dataclass(frozen=True)
class Refused:
    """A frame was not captured and runs plain while what the evaluator saw stays the same."""

    error: StageError


@dataclass(frozen=True)
class LimitReached:
    """No more captures of this code: calls that fit none of the existing ones run plain."""

    error: StageError


Event = Captured | Refused | LimitReached

__all__ = ["CaptureWarning", "Captured", "Event", "LimitReached", "Refused"]
