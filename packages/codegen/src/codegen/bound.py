"""A loaded unit, and the instructions that it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from stagewire.program import Unit


class Bound(NamedTuple):
    """run: the callable. unit: says which unit without choices it runs now."""

    run: Callable[..., Any]
    unit: Callable[[], Unit]
