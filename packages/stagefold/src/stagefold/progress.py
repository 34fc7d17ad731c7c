"""One status line on stderr while compiling, on a terminal; nothing elsewhere unless asked for."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self


class Progress:
    """`with Progress("forward", None) as p: p.step("aotgrad", 0.12)`.

    `enabled` None means: only when stderr is a terminal. On a terminal the line is rewritten in place and wiped at the
    end; otherwise (when forced) each compilation prints one line when it ends.
    """

    def __init__(self, name: str, enabled: bool | None) -> None:
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._enabled = self._terminal if enabled is None else enabled
        self._name = name
        self._steps: list[str] = []
        self._start = time.perf_counter()

    def __enter__(self) -> Self:
        self._show("...")
        return self

    def step(self, stage: str, seconds: float) -> None:
        """`stage` has finished after `seconds`."""
        self._steps.append(f"{stage} {seconds * 1e3:.0f} ms")
        self._show("...")

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._enabled:
            return
        total = time.perf_counter() - self._start
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
        else:
            outcome = "failed" if error is not None else "ready"
            sys.stderr.write(f"stagefold: {self._name}: {', '.join(self._steps)}; {outcome} after {total:.2f} s\n")
        sys.stderr.flush()

    def _show(self, tail: str) -> None:
        if self._enabled and self._terminal:
            line = f"stagefold: compiling {self._name}: {', '.join(self._steps)} {tail}"
            sys.stderr.write("\r\x1b[K" + line[:118])
            sys.stderr.flush()
