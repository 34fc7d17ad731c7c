"""What an optimized callable reports while it works: captures, refusals, the recompile limit.

    event ::= Captured(capture, reason, seconds) | Broke(error, capture) | Refused(error) | LimitReached(error)

Users without an `on_event` see refusals of the callable itself and the limit as `CaptureWarning`, each once; the logger
"bytecap" is told of all but captures.
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
    effects: what the replacement does besides the graph: ("write", what object) or ("call", function that is called for
    its effect alone, such as print).
    """

    capture: Capture
    reason: str | None
    seconds: float
    reused: bool = False
    effects: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Broke:
    """A graph ends before its frame does, at an instruction that runs plain; captures go on behind it.

    error: why. capture: what stands before it, None where that is no tensor work.
    """

    error: StageError
    capture: Capture | None


@dataclass(frozen=True)
class Refused:
    """A frame was not captured and runs plain while what the evaluator saw stays the same."""

    error: StageError


@dataclass(frozen=True)
class LimitReached:
    """No more captures of this code: calls that fit none of the existing ones run plain."""

    error: StageError


Event = Captured | Broke | Refused | LimitReached
"""What observers of a compilation are told."""

__all__ = ["Broke", "CaptureWarning", "Captured", "Event", "LimitReached", "Refused"]
