"""Functions and classes of C that run as they are, on `Live` values: iterators, heaps, searches; cmp_to_key."""

from __future__ import annotations

import _bisect
import _collections
import _heapq
import functools
import itertools
from collections.abc import Callable
from typing import Any

from bytecap.context_types import Tracer
from bytecap.objects.base import Value
from bytecap.objects.dispatch import inlined
from bytecap.objects.live import Live, NativeIterator, native, native_on_list


def _pairwise(tracer: Tracer, iterable: Value, /) -> Value:
    source = iter(Live(tracer, iterable))
    return NativeIterator(itertools.pairwise(source), source)


NATIVE: dict[Any, Callable[..., Value]] = {
    function: native(function)
    for function in (
        zip, map, filter, itertools.chain, itertools.chain.from_iterable, itertools.count, itertools.cycle,
        itertools.compress, itertools.accumulate, itertools.zip_longest, itertools.groupby, itertools.starmap,
        itertools.takewhile, itertools.dropwhile, itertools.filterfalse, functools.reduce,
        _collections._count_elements,  # type: ignore[attr-defined]
    )
} | {
    enumerate: native(enumerate, 1, "start"),
    itertools.islice: native(itertools.islice, 1, 2, 3),
    itertools.repeat: native(itertools.repeat, 1, "times"),
    itertools.product: native(itertools.product, "repeat"),
    itertools.tee: native(itertools.tee, 1),
    itertools.pairwise: _pairwise,
} | {
    function: native(function, 1, "r")
    for function in (itertools.permutations, itertools.combinations, itertools.combinations_with_replacement)
} | {
    function: native_on_list(function)
    for function in (_heapq.heappush, _heapq.heappop, _heapq.heapreplace, _heapq.heappushpop, _heapq.heapify)
} | {
    function: native_on_list(function, 1, 2, "lo", "hi")
    for function in (_bisect.bisect_left, _bisect.bisect_right, _bisect.insort_left, _bisect.insort_right)
}  # fmt: skip


# -- as a Python function


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


NATIVE[functools.cmp_to_key] = inlined(cmp_to_key)
