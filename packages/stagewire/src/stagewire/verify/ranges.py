"""The values that a static index takes over the points of its axes: exact, or None where that is not known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from stagewire import index as ix
from stagewire.expr import Dim
from stagewire.loop import Index

_MOST_POINTS = 4096

Sizes = Mapping[str, int]


def index_range(index: Index, sizes: Sizes) -> tuple[int, int] | None:
    """Least and greatest value; None for an index that depends on values or symbols, or whose axes have no points.

    An affine index is bounded exactly. One with // or % is bounded by intervals if `exact` is not affordable, which
    may be too wide: then the answer is None.
    """
    if ix.is_plain(index) and ix.is_static(index) and all(sizes.get(axis, 0) for axis in ix.axes_of(index)):
        return ix.range_of(index, sizes)
    if ix.has_values(index):
        return None
    values = _at_all_points((index,), {axis: sizes.get(axis, 0) for axis in ix.axes_of(index)})
    return (min(values)[0], max(values)[0]) if values else None


def collision(index: Index, deciding: Sequence[Index], sizes: Mapping[str, Dim]) -> int | None:
    """A value that the index has at two points that differ in a deciding one; None where there is none, or that is not
    known. Values in the deciding ones are decided by others of them."""
    found: dict[int, tuple[int, ...]] = {}
    for value, *others in _at_all_points((index, *deciding), sizes):
        if found.setdefault(value, tuple(others)) != tuple(others):
            return value
    return None


def _at_all_points(indices: Sequence[Index], sizes: Mapping[str, Dim]) -> list[tuple[int, ...]]:
    """Their values at each point; nothing for symbolic sizes, no points or too many of them."""
    counts = [size for size in sizes.values() if isinstance(size, int)]
    if len(counts) < len(sizes) or not all(map(ix.is_static, indices)) or math.prod(counts) > _MOST_POINTS:
        return []
    points = itertools.product(*map(range, counts))
    try:
        return [tuple([_value(index, dict(zip(sizes, point, strict=True))) for index in indices]) for point in points]
    except ZeroDivisionError:
        return []


def _value(index: Index, point: Mapping[str, int]) -> int:
    return int(ix.evaluate(index, lambda atom: point.get(atom.name, 0)))
