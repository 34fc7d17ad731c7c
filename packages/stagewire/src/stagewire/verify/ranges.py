"""The values that a static index takes over the points of its axes: exact, or None where that is not known."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from stagewire.loop import AxisAtom, FloorDivAtom, Index, ModAtom, ValueAtom
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
    axes = sorted(set(axes_of(index)))
    if not is_static(index) or any(axis not in sizes or sizes[axis] == 0 for axis in axes):
        return None
    coefficients = _affine(index)
    if coefficients is not None and isinstance(index.constant, int):
        ends = [(0, c * (sizes[axis] - 1)) for axis, c in coefficients.items()]
        return index.constant + sum(min(end) for end in ends), index.constant + sum(max(end) for end in ends)
    points = 1
    for axis in axes:
        points *= sizes[axis]
    if points > _MOST_POINTS:
        return None
    values = [
        evaluate_index(index, dict(zip(axes, point, strict=True)))
        for point in itertools.product(*(range(sizes[axis]) for axis in axes))
    ]
    return min(values), max(values)


def axes_of(index: Index) -> Iterator[str]:
    """The axes that occur in an index, with repetitions."""
    for term in index.terms:
        match term.atom:
            case AxisAtom(name):
                yield name
            case FloorDivAtom(numerator, _) | ModAtom(numerator, _):
                yield from axes_of(numerator)
            case _:
                continue


def values_of(index: Index) -> Iterator[str]:
    """The SSA values that occur in an index, with repetitions."""
    for term in index.terms:
        match term.atom:
            case ValueAtom(name):
                yield name
            case FloorDivAtom(numerator, _) | ModAtom(numerator, _):
                yield from values_of(numerator)
            case _:
                continue


def is_static(index: Index) -> bool:
    """True where only axes and integers (and no division by zero) take part."""
    if not isinstance(index.constant, int):
        return False
    for term in index.terms:
        if not isinstance(term.coefficient, int):
            return False
        match term.atom:
            case ValueAtom():
                return False
            case FloorDivAtom(numerator, divisor) | ModAtom(numerator, divisor):
                if not isinstance(divisor, int) or divisor == 0 or not is_static(numerator):
                    return False
            case _:
                continue
    return True


def _affine(index: Index) -> dict[str, int] | None:
    coefficients: dict[str, int] = {}
    for term in index.terms:
        if not isinstance(term.atom, AxisAtom) or not isinstance(term.coefficient, int):
            return None
        coefficients[term.atom.name] = coefficients.get(term.atom.name, 0) + term.coefficient
    return coefficients


def evaluate_index(index: Index, point: Mapping[str, int]) -> int:
    """The value of a static index at one point; `//` and `%` are Python's."""
    total = index.constant
    assert isinstance(total, int)
    for term in index.terms:
        coefficient = term.coefficient
        assert isinstance(coefficient, int)
        match term.atom:
            case AxisAtom(name):
                atom = point[name]
            case FloorDivAtom(numerator, divisor):
                assert isinstance(divisor, int)
                atom = evaluate_index(numerator, point) // divisor
            case ModAtom(numerator, divisor):
                assert isinstance(divisor, int)
                atom = evaluate_index(numerator, point) % divisor
            case ValueAtom(name):
                raise ValueError(f"the index depends on the value {name!r}")
        total += coefficient * atom
    return total
