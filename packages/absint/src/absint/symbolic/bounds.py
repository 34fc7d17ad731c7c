"""Intervals of polynomials over symbols with ranges.

Each atom is written as its least value plus something that is not negative; where all coefficients of that form
are positive, its constant term is the least value of the whole. So `n*m - n >= 0` follows from `m >= 1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from absint.symbolic.polynomial import ONE, ZERO, Atom, Monomial, Polynomial, constant, kept

__all__ = ["Bounds", "Ranges", "bounds_of", "implied"]

Bounds = tuple[int | None, int | None]
Ranges = tuple[tuple[str, Bounds], ...]
"""Of symbols."""
_UNKNOWN: Bounds = (None, None)


@kept
def bounds_of(value: Polynomial, known: Ranges) -> Bounds:
    """(least, greatest) of `value`, of whose symbols the ranges are known."""
    ranges = {atom: _atom_bounds(atom, known) for atom in value.atoms()}
    if value.is_linear:
        return _linear_bounds(value, ranges)
    shifted, open_ended = ZERO, False
    for key, count in value.terms.items():
        term = _shifted(key, ranges)
        if term is None:
            open_ended = True
        else:
            shifted = shifted + term * count
    if open_ended:
        return _UNKNOWN
    spans = {atom: None if high is None else high - low for atom, (low, high) in ranges.items() if low is not None}
    low: int | None = shifted.offset
    high: int | None = shifted.offset
    for key, count in shifted.terms.items():
        if not key:
            continue
        reach = _reach(key, spans)
        change = None if reach is None else count * reach
        if count < 0:
            low = None if low is None or change is None else low + change
        else:
            high = None if high is None or change is None else high + change
    return low, high


def _linear_bounds(value: Polynomial, ranges: dict[Atom, Bounds]) -> Bounds:
    low: int | None = value.offset
    high: int | None = value.offset
    for key, count in value.terms.items():
        if not key:
            continue
        least, greatest = ranges[key[0][0]] if count > 0 else reversed(ranges[key[0][0]])
        low = None if low is None or least is None else low + count * least
        high = None if high is None or greatest is None else high + count * greatest
    return low, high


def _shifted(key: Monomial, ranges: dict[Atom, Bounds]) -> Polynomial | None:
    made = ONE
    for atom, power in key:
        low = ranges[atom][0]
        if low is None:
            return None
        step = Polynomial({((atom, 1),): 1}) + low
        for _ in range(power):
            made = made * step
    return made


def _reach(key: Monomial, spans: dict[Atom, int | None]) -> int | None:
    reach = 1
    for atom, power in key:
        span = spans[atom]
        if span is None:
            return None
        reach *= span**power
    return reach


def _atom_bounds(atom: Atom, known: Ranges) -> Bounds:
    if not atom.operands:
        return next(ends for name, ends in known if name == atom)
    first, second = (bounds_of(part, known) for part in atom.operands)
    return _COMBINED[atom.operator](first, second)


def _quotient(left: Bounds, right: Bounds) -> Bounds:
    if right[0] is None or right[0] < 1:
        return _UNKNOWN
    return _over(left[0], right, least=True), _over(left[1], right, least=False)


def _over(end: int | None, right: Bounds, *, least: bool) -> int | None:
    """An end of `left` divided by that end of `right` that gives the outermost value."""
    if end is None:
        return None
    divisor = right[1] if (end >= 0) == least else right[0]
    if divisor is None:  # an ever larger divisor
        return 0 if end >= 0 else -1
    return end // divisor


def _minimum(left: Bounds, right: Bounds) -> Bounds:
    lows, highs = (left[0], right[0]), [end for end in (left[1], right[1]) if end is not None]
    return None if None in lows else min(lows), min(highs) if highs else None  # type: ignore[type-var]


def _maximum(left: Bounds, right: Bounds) -> Bounds:
    lows, highs = [end for end in (left[0], right[0]) if end is not None], (left[1], right[1])
    return max(lows) if lows else None, None if None in highs else max(highs)  # type: ignore[type-var]


_COMBINED = {"//": _quotient, "Min": _minimum, "Max": _maximum}


def implied(value: Polynomial, bounds: Callable[[Polynomial], Bounds]) -> Iterator[Polynomial]:
    """What is known to be >= 0 of the atoms in `value`: b*(a//b) <= a < b*(a//b) + b for b > 0, Min(a, b) <= a."""
    for atom in set(value.atoms()):
        if not atom.operands:
            continue
        left, right = atom.operands
        made = Polynomial({((atom, 1),): 1})
        if atom.operator == "//":
            low = bounds(right)[0]
            if low is not None and low >= 1:
                yield left - right * made
                yield right * made + right - 1 - left
        else:
            sign = constant(1 if atom.operator == "Min" else -1)
            yield (left - made) * sign
            yield (right - made) * sign
