"""Calls of one program that take turns: how fast each is over the first."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Call = Callable[[], Any]


def in_turns(
    calls: Sequence[Call], rounds: int = 9, least: float = 0.03, clock: Callable[[], float] = time.process_time
) -> tuple[float, list[float]]:
    """Seconds of the first call, and the speeds of the others over it: medians over rounds of the ratio within a round.

    least: seconds that each call is repeated for in a round.
    """
    for call in [*calls, *calls]:
        call()
    start = clock()
    calls[0]()
    repeat = max(1, round(least / max(clock() - start, 1e-6)))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for own, call in zip(times, calls, strict=True):
            start = clock()
            for _ in range(repeat):
                call()
            own.append((clock() - start) / repeat)
    base, *others = times
    return statistics.median(base), [
        statistics.median(one / mine for one, mine in zip(base, own, strict=True)) for own in others
    ]
