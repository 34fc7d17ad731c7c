"""C functions of the standard library as Python functions, which the evaluator inlines."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def cmp_to_key(compare: Callable[[Any, Any], Any]) -> Any:
    """functools.cmp_to_key."""
    return _ComparedKey(compare)


class _ComparedKey:
    """What cmp_to_key gives: a function from objects to keys, and, with `obj`, such a key."""

    __slots__ = ("compare", "obj")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, compare: Callable[[Any, Any], Any], obj: Any = None) -> None:
        self.compare = compare
        self.obj = obj

    def __call__(self, obj: Any) -> Any:
        return _ComparedKey(self.compare, obj)

    def __lt__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) > 0

    def __eq__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) == 0

    def __le__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) <= 0

    def __ge__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) >= 0


POLYFILLS: dict[Any, Callable[..., Any]] = {
    functools.cmp_to_key: cmp_to_key,
}
