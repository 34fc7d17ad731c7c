"""Whether doing something again and again keeps memory: a flat curve, measured in this process."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

_READINGS, _EACH = 9, 3


def resident_kib() -> int:
    """The resident memory of this process, in KiB (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def growth(action: Callable[[], object], rounds: int, warm: int) -> float:
    """KiB that one round keeps, from the lowest of the first and of the last readings among `rounds`.

    warm: rounds before the first reading, for caches and arenas that fill once.
    """
    for _ in range(warm):
        action()
    readings = []
    for _ in range(_READINGS):
        for _ in range(rounds // _READINGS):
            action()
        gc.collect()
        readings.append(resident_kib())
    between = rounds // _READINGS * (_READINGS - _EACH)
    return (min(readings[-_EACH:]) - min(readings[:_EACH])) / between
