"""Python's cyclic garbage collector, at rest while stages make many objects.

Its switch belongs to the process: several threads may ask for rest at once, and the last one to finish puts it back.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator


class _Rest:
    """How many ask for rest now, and whether the collector was on before the first of them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may ask, too
        self.askers = 0
        self.was_enabled = False

    def begin(self) -> None:
        with self.lock:
            if self.askers == 0:
                self.was_enabled = gc.isenabled()
                gc.disable()
            self.askers += 1

    def end(self) -> None:
        with self.lock:
            self.askers = max(0, self.askers - 1)  # a forked child forgot who asked
            if self.askers == 0 and self.was_enabled:
                gc.enable()

    def forget_other_threads(self) -> None:
        """In a forked child: the threads that asked are not there any more."""
        self.lock = threading.RLock()
        if self.askers and self.was_enabled:
            gc.enable()
        self.askers = 0


_REST = _Rest()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_REST.forget_other_threads)


@contextlib.contextmanager
def resting_collector() -> Iterator[None]:
    """Hold the garbage collector.

    >>> with resting_collector():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    _REST.begin()
    try:
        yield
    finally:
        _REST.end()
