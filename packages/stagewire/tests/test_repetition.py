"""Repetitions in sequences."""

from __future__ import annotations

from stagewire.repetition import Repetition, repetitions


def test_the_longest_comes_first() -> None:
    assert repetitions([1, 2] * 15)[0] == Repetition(0, 2, 15)
    assert repetitions([*range(5), *([7, 8, 7, 9] * 16), 3])[0] == Repetition(5, 4, 16)
    assert repetitions([4] * 16)[0] == Repetition(0, 1, 16)
    assert repetitions([]) == repetitions([1, 2, 3]) == []
