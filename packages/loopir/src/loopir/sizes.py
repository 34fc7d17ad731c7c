"""What is known of symbolic sizes: rough numbers for decisions, and comparisons that hold for every value.

A decision (loop order, what to recompute, where to cut) takes each symbol for `TYPICAL`: it may be slow for a size,
never wrong. A simplification must hold for all sizes: it asks `at_least`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from stagewire import polynomial
from stagewire.expr import Dim, Expr, dim_of, evaluate, polynomial_of, symbols_of

TYPICAL = 64
"""The value of a symbol in estimates: a batch, or a short sequence."""

Lower = Mapping[str, int]
NOTHING: Lower = MappingProxyType({})


@lru_cache(maxsize=16384)
def estimate(dim: Dim) -> int:
    """A number for a size."""
    return dim if isinstance(dim, int) else evaluate(dim, dict.fromkeys(symbols_of(dim), TYPICAL))


def lower_bounds(sizes: Iterable[Dim]) -> Lower:
    """What the symbols are at least where loops of these sizes run at all: a product that is not 0 has no factor 0."""
    found: dict[str, int] = {}
    for size in sizes:
        if isinstance(size, Expr):
            poly = polynomial_of(size)
            if poly is not None and len(poly) == 1:
                for name, _ in next(iter(poly)):
                    found[name] = 1
    return found or NOTHING


def at_least(dim: Dim, number: int, lower: Lower = NOTHING) -> bool:
    """Whether dim >= number, whatever the symbols are: at least `lower`, where that says something.

    >>> from stagewire.expr import symbol
    >>> at_least(symbol("n") * 2 - symbol("n") - 1, 0, {"n": 1}), at_least(symbol("n"), 0)
    (True, False)
    """
    if isinstance(dim, int):
        return dim >= number
    poly = polynomial_of(dim)
    if poly is None:
        return False
    least = polynomial.least(poly, lower)
    return least is not None and least >= number


def divides(divisor: Dim, dividend: Dim) -> bool:
    """Whether `dividend` is a multiple of `divisor`, whatever the symbols are."""
    if isinstance(divisor, int) and isinstance(dividend, int):
        return dividend % divisor == 0
    found = _division(dividend, divisor)
    return found is not None and not found[1]


def divide(dividend: Dim, divisor: Dim) -> tuple[Dim, Dim]:
    """(quotient, rest), the rest being what no multiple of the divisor takes away: it may have any size."""
    found = _division(dividend, divisor)
    if found is None:
        return 0, dividend
    return dim_of(found[0]), dim_of(found[1])


def _division(dividend: Dim, divisor: Dim) -> tuple[polynomial.Polynomial, polynomial.Polynomial] | None:
    a, b = polynomial_of(dividend), polynomial_of(divisor)
    if a is None or b is None:
        same = dividend == divisor
        return (polynomial.of_integer(1), polynomial.of_integer(0)) if same else None
    return polynomial.divide(a, b)
