"""The values that a static index takes over the points of its axes: of all points, or of those that are looked at."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from stagewire import index as ix
from stagewire.expr import Dim
from stagewire.loop import Index
from stagewire.types import overlaps

MOST_POINTS = 4096

Sizes = Mapping[str, Dim]


def index_range(index: Index, sizes: Sizes) -> tuple[int, int] | None:
    """Least and greatest value; None for an index that depends on values or symbols, or whose axes have no points.

    An affine index is bounded exactly, one with // or % by the points that are looked at.
    """
    if ix.is_plain(index) and ix.is_static(index) and all(sizes.get(axis, 0) for axis in ix.axes_of(index)):
        return ix.range_of(index, sizes)
    if ix.has_values(index):
        return None
    values = values_at((index,), {axis: sizes.get(axis, 0) for axis in ix.axes_of(index)})
    return (min(values)[0], max(values)[0]) if values else None


def collision(index: Index, deciding: Sequence[Index], sizes: Sizes) -> int | None:
    """A value that the index has at two points that differ in a deciding one; None where there is none, or that is not
    known. Values in the deciding ones are decided by others of them.

    Steps each of which exceeds what all smaller ones reach meet nowhere. Else points that are apart along two axes are
    found by arithmetic, others among the points that are looked at.
    """
    if not all(map(ix.is_static, (index, *deciding))) or not all(isinstance(size, int) for size in sizes.values()):
        return None
    steps = _steps(index)
    if steps and not overlaps([sizes.get(axis, 1) for axis in steps], [abs(step) for step in steps.values()]):
        return None
    if (affine := _affine_collision(index, deciding, sizes)) is not None:
        return affine
    found: dict[int, tuple[int, ...]] = {}
    for value, *others in values_at((index, *deciding), sizes):
        if found.setdefault(value, tuple(others)) != tuple(others):
            return value
    return None


def _affine_collision(index: Index, deciding: Sequence[Index], sizes: Sizes) -> int | None:
    """The same along two axes alone: a*i + b*j does not change where i grows by b/g and j by -a/g (g divides both)."""
    others = [_steps(one) for one in deciding]
    for (i, a), (j, b) in itertools.combinations(sorted(_steps(index).items()), 2):
        common = math.gcd(a, b)
        if not common:
            continue
        apart = {i: b // common, j: -a // common}
        inside = all(abs(far) < sizes.get(axis, 1) for axis, far in apart.items())  # type: ignore[operator]
        if inside and any(sum(one.get(axis, 0) * far for axis, far in apart.items()) for one in others):
            start = {axis: max(0, -far) for axis, far in apart.items()}
            return int(index.constant) + a * start[i] + b * start[j]  # type: ignore[arg-type]
    return None


def _steps(index: Index) -> dict[str, int]:
    """The steps of a static index; none of one that is more than a sum of axes."""
    return ix.affine(index) or {}  # type: ignore[return-value]


def values_at(indices: Sequence[Index], sizes: Sizes) -> list[tuple[int, ...]]:
    """Their values at each point; of many points, at the first and the last of each axis. Nothing for symbolic sizes or
    no points."""
    counts = [size for size in sizes.values() if isinstance(size, int)]
    if len(counts) < len(sizes) or not all(map(ix.is_static, indices)):
        return []
    points = (dict(zip(sizes, point, strict=True)) for point in itertools.product(*_places(counts)))
    try:
        return [tuple([_value(index, point) for index in indices]) for point in points]
    except ZeroDivisionError:
        return []


def _places(counts: Sequence[int]) -> list[Sequence[int]]:
    """The places of each axis that are looked at: all of them where there are few points."""
    most = max(counts, default=1)
    while most > 2 and math.prod(min(count, most) for count in counts) > MOST_POINTS:
        most = most * 3 // 4
    places: list[Sequence[int]] = [
        range(count) if count <= most else (*range(most - most // 2), *range(count - most // 2, count))
        for count in counts
    ]
    return places if math.prod(map(len, places)) <= MOST_POINTS else [()]


def _value(index: Index, point: Mapping[str, int]) -> int:
    return int(ix.evaluate(index, lambda atom: point.get(atom.name, 0)))
