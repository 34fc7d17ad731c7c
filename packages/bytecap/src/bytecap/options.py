"""The options of a capture."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_RECURRENCE = 40
"""Each step takes about 50 ms to compile, and its kernels some microseconds to run, a fifth of what eager takes."""


@dataclass(frozen=True)
class Options:
    """How frames are captured.

    allow_empty: capture frames without any tensor operation too (else they are `NoTensorWork`).
    longest_recurrence: the most steps of a recurrent layer (times layers and directions) that a graph takes where it
    can end before the layer; None: any. `optimize` without options of its own says `LONGEST_RECURRENCE`, unless the
    whole function is to be one graph.
    """

    allow_empty: bool = False
    longest_recurrence: int | None = None
