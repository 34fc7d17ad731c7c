"""What repeats itself in a sequence: the layers among the nodes of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import sub
from typing import NamedTuple

_TRIED = 4
"""How many lengths of a copy are tried."""

_TIMES = 8
"""How often a key may stand in a copy that is found."""


class Repetition(NamedTuple):
    """So many copies of `period` keys, from number `start` on."""

    start: int
    period: int
    copies: int


def repetitions(keys: Sequence[int]) -> list[Repetition]:
    """The few longest stretches in which each key is that of `period` places before, the longest first.

    >>> repetitions([7, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 8])[0]
    Repetition(start=1, period=3, copies=3)
    """
    runs = [(length, period, start) for period in _periods(keys) for start, length in _runs(keys, period)]
    runs.sort(key=lambda run: (-run[0], run[1]))
    return [Repetition(start, period, length // period + 1) for length, period, start in runs[:_TRIED]]


def _periods(keys: Sequence[int]) -> list[int]:
    """Distances at which the most places have equal keys, first. A key may stand several times in a copy."""
    positions: dict[int, list[int]] = {}
    for position, key in enumerate(keys):
        positions.setdefault(key, []).append(position)
    distances: Counter[int] = Counter()
    for found in positions.values():
        for ahead in range(1, min(_TIMES, len(found) // 2) + 1):
            distances.update(map(sub, found[ahead:], found))
    return [period for period, _ in distances.most_common(_TRIED)]


def _runs(keys: Sequence[int], period: int) -> Iterator[tuple[int, int]]:
    """Start and length of what equals the keys one period later, where that is a period long or more."""
    start = 0
    for position in range(len(keys) - period + 1):
        if position == len(keys) - period or keys[position] != keys[position + period]:
            if position - start >= period:
                yield start, position - start
            start = position + 1
