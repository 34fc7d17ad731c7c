"""What the rewrite is told, and how sizes are given to whoever chooses a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from absint.meta import Meta
from stagewire.capture import Capture
from stagewire.expr import Dim, evaluate

__all__ = ["Choice", "hints"]


class Choice(NamedTuple):
    """kernel: the fused kernel for query, key and value and a mask (or None), is_causal, scale and dropout; None for
    none. drops: whether weights with dropout may be fused, whose mask the kernel then draws in its own way. learned:
    whether masks that have a gradient may be."""

    kernel: Callable[[list[Meta], Meta | None, bool, float, float], str | None]
    drops: bool = True
    learned: bool = True


def hints(capture: Capture, sizes: Iterable[Dim]) -> tuple[int, ...]:
    """Sizes as they were at capture."""
    values = {symbol.name: symbol.hint for symbol in capture.symbols if symbol.hint is not None}
    return tuple([size if isinstance(size, int) else evaluate(size, values) for size in sizes])
