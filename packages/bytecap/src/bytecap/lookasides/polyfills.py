"""C functions of the standard library as Python functions, which the evaluator inlines.

Sources: the pure forms of `heapq`, `bisect` and `collections` in CPython.
"""

from __future__ import annotations

import _bisect
import _collections
import _heapq
import functools
from collections.abc import Callable, Iterable
from typing import Any


def count_elements(mapping: Any, iterable: Iterable[Any]) -> None:
    """collections._count_elements."""
    get = mapping.get
    for element in iterable:
        mapping[element] = get(element, 0) + 1


def heappush(heap: list[Any], item: Any) -> None:
    """heapq.heappush."""
    heap.append(item)
    _sift_down(heap, 0, len(heap) - 1)


def heappop(heap: list[Any]) -> Any:
    """heapq.heappop."""
    last = heap.pop()
    if heap:
        first = heap[0]
        heap[0] = last
        _sift_up(heap, 0)
        return first
    return last


def heapreplace(heap: list[Any], item: Any) -> Any:
    """heapq.heapreplace."""
    first = heap[0]
    heap[0] = item
    _sift_up(heap, 0)
    return first


def heappushpop(heap: list[Any], item: Any) -> Any:
    """heapq.heappushpop."""
    if heap and heap[0] < item:
        item, heap[0] = heap[0], item
        _sift_up(heap, 0)
    return item


def heapify(heap: list[Any]) -> None:
    """heapq.heapify."""
    for index in reversed(range(len(heap) // 2)):
        _sift_up(heap, index)


def _sift_down(heap: list[Any], start: int, position: int) -> None:
    item = heap[position]
    while position > start:
        above = (position - 1) >> 1
        parent = heap[above]
        if not item < parent:
            break
        heap[position] = parent
        position = above
    heap[position] = item


def _sift_up(heap: list[Any], position: int) -> None:
    end, start, item = len(heap), position, heap[position]
    child = 2 * position + 1
    while child < end:
        right = child + 1
        if right < end and not heap[child] < heap[right]:
            child = right
        heap[position] = heap[child]
        position = child
        child = 2 * position + 1
    heap[position] = item
    _sift_down(heap, start, position)


def bisect_right(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> int:
    """bisect.bisect_right."""
    if lo < 0:
        raise ValueError("lo must be non-negative")
    hi = len(a) if hi is None else hi
    while lo < hi:
        middle = (lo + hi) // 2
        if x < (a[middle] if key is None else key(a[middle])):
            hi = middle
        else:
            lo = middle + 1
    return lo


def bisect_left(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> int:
    """bisect.bisect_left."""
    if lo < 0:
        raise ValueError("lo must be non-negative")
    hi = len(a) if hi is None else hi
    while lo < hi:
        middle = (lo + hi) // 2
        if (a[middle] if key is None else key(a[middle])) < x:
            lo = middle + 1
        else:
            hi = middle
    return lo


def insort_right(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> None:
    """bisect.insort_right."""
    a.insert(bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)


def insort_left(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> None:
    """bisect.insort_left."""
    a.insert(bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)


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


def _functions() -> dict[Any, Callable[..., Any]]:
    found: dict[Any, Callable[..., Any]] = {
        _collections._count_elements: count_elements,  # type: ignore[attr-defined]
        functools.cmp_to_key: cmp_to_key,
    }
    for function in (heappush, heappop, heapreplace, heappushpop, heapify):
        found[getattr(_heapq, function.__name__)] = function
    for function in (bisect_left, bisect_right, insort_left, insort_right):
        found[getattr(_bisect, function.__name__)] = function
    return found


POLYFILLS = _functions()
