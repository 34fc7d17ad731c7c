"""The values that a static index takes over the points of its axes: exact, or None where that is not known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from stagewire import index as ix
from stagewire.loop import Index
from stagewire.types import TensorType

_MOST_POINTS = 4096

Sizes = Mapping[str, int]


def extent(type: TensorType) -> int | None:
    """How many elements from the storage offset on the tensor spans; None where a size is symbolic."""
    last = 0
    for size, stride in zip(type.shape, type.stride, strict=False):
        if not isinstance(size, int) or not isinstance(stride, int):
            return None
        if size == 0:
            return 0
        last += (size - 1) * stride
    return last + 1


def index_range(index: Index, sizes: Sizes) -> tuple[int, int] | None:
    """Least and greatest value; None for an index that depends on values or symbols, or whose axes have no points.

    An affine index is bounded exactly. One with // or % is bounded by intervals if `exact` is not affordable, which
    may be too wide: then the answer is None.
    """
    axes = sorted(ix.axes_of(index))
    if not ix.is_static(index) or ix.has_values(index) or any(sizes.get(axis, 0) == 0 for axis in axes):
        return None
    if ix.is_plain(index):
        return ix.range_of(index, sizes)
    if math.prod(sizes[axis] for axis in axes) > _MOST_POINTS:
        return None
    points = itertools.product(*(range(sizes[axis]) for axis in axes))
    try:
        values = [_value(index, dict(zip(axes, point, strict=True))) for point in points]
    except ZeroDivisionError:
        return None
    return min(values), max(values)


def _value(index: Index, point: Mapping[str, int]) -> int:
    return int(ix.evaluate(index, lambda atom: point[atom.name]))
