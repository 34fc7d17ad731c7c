"""Intervals of polynomials over symbols with ranges.

Each atom is written as its least value plus something that is not negative; where all coefficients of that form
are positive, its constant term is the least value of the whole. So `n*m - n >= 0` follows from `m >= 1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stagewire.polynomial import ONE, ZERO, Atom, Monomial, Polynomial, cached

Bounds = tuple[int | None, int | None]
"""(least, greatest) value, None where there is no bound."""
Ranges = tuple[tuple[str, Bounds], ...]
"""Of symbols, and of atoms of which more is known than follows."""
UNBOUNDED: Bounds = (None, None)


@cached
def bounds_of(value: Polynomial, known: Ranges, others: Bounds = UNBOUNDED) -> Bounds:
    """The bounds of `value` by the ranges of its symbols; `others`: of those that are not among them."""
    ranges = {atom: _atom_bounds(atom, known, others) for atom in value.atoms()}
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
        return UNBOUNDED
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
        made = made * (Polynomial({((atom, 1),): 1}) + low) ** power
    return made


def _reach(key: Monomial, spans: dict[Atom, int | None]) -> int | None:
    reach = 1
    for atom, power in key:
        span = spans[atom]
        if span is None:
            return None
        reach *= span**power
    return reach


def _atom_bounds(atom: Atom, known: Ranges, others: Bounds) -> Bounds:
    for name, bounds in known:
        if name == atom:
            return bounds
    if not atom.operands:
        return others
    return _COMBINED[atom.operator](*[bounds_of(part, known, others) for part in atom.operands])


def _quotient(left: Bounds, right: Bounds) -> Bounds:
    if right[0] is None or right[0] < 1:
        return UNBOUNDED
    return _over(left[0], right, least=True), _over(left[1], right, least=False)


def _over(end: int | None, right: Bounds, *, least: bool) -> int | None:
    """An end of `left` divided by that end of `right` that gives the outermost value."""
    if end is None:
        return None
    divisor = right[1] if (end >= 0) == least else right[0]
    if divisor is None:  # an ever larger divisor
        return 0 if end >= 0 else -1
    return end // divisor


def _remainder(left: Bounds, right: Bounds) -> Bounds:
    if right[0] is None or right[0] < 1:
        return UNBOUNDED
    return 0, None if right[1] is None else right[1] - 1


def _minimum(*sides: Bounds) -> Bounds:
    lows, highs = [low for low, _ in sides if low is not None], [high for _, high in sides if high is not None]
    return min(lows) if len(lows) == len(sides) else None, min(highs, default=None)


def _maximum(*sides: Bounds) -> Bounds:
    lows, highs = [low for low, _ in sides if low is not None], [high for _, high in sides if high is not None]
    return max(lows, default=None), max(highs) if len(highs) == len(sides) else None


_COMBINED: dict[str, Callable[..., Bounds]] = {"//": _quotient, "%": _remainder, "Min": _minimum, "Max": _maximum}


def implied(value: Polynomial, bounds: Callable[[Polynomial], Bounds]) -> Iterator[Polynomial]:
    """What is known to be >= 0 of the atoms in `value`: b*(a//b) <= a < b*(a//b) + b for b > 0, Min(a, b) <= a."""
    for atom in set(value.atoms()):
        made = Polynomial({((atom, 1),): 1})
        match atom.operator:
            case "//":
                left, right = atom.operands
                low = bounds(right)[0]
                if low is not None and low >= 1:
                    yield left - right * made
                    yield right * made + right - 1 - left
            case "Min" | "Max":
                for side in atom.operands:
                    yield side - made if atom.operator == "Min" else made - side
