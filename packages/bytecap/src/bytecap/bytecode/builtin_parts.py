"""Builtin objects as C code sees them, past the methods of a subclass. (No torch: driver code is tested without it.)"""

from __future__ import annotations

import functools
import operator
from collections import OrderedDict
from types import CellType
from typing import Any

EMPTY_CELL = CellType()
IS_EMPTY = functools.partial(operator.eq, EMPTY_CELL)
"""Whether a cell is empty: all empty cells are equal."""


def stored_items(real: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """What a dict holds, in its order, past the methods of a subclass."""
    if isinstance(real, OrderedDict):
        return [(key, dict.__getitem__(real, key)) for key in OrderedDict.__iter__(real)]
    return list(dict.items(real))


def rebuild_tuple(cls: type, items: list[Any]) -> Any:
    """A tuple of class `cls` with these items."""
    if cls is tuple:
        return tuple(items)
    if hasattr(cls, "_make"):
        return cls._make(items)  # type: ignore[attr-defined]
    return cls(items)
