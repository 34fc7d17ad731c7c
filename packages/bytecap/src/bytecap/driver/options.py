"""The options of a capture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """How frames are captured.

    allow_empty: capture frames without any tensor operation too (else they are `NoTensorWork`).
    """

    allow_empty: bool = False
