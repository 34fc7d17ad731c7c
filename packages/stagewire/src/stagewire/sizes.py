"""Symbolic sizes as numbers: rough ones for decisions, and divisions that hold for every value.

A decision (loop order, what to recompute, which plan is cheaper) takes each symbol for `TYPICAL`: it may be slow for a
size, never wrong.
"""

from __future__ import annotations

from functools import lru_cache

from stagewire import polynomial
from stagewire.expr import Dim, dim_of, evaluate, polynomial_of, symbols_of

__all__ = ["TYPICAL", "divide", "divides", "estimate"]

TYPICAL = 64
"""The value of a symbol in estimates: a batch, or a short sequence."""


@lru_cache(maxsize=16384)
def estimate(dim: Dim) -> int:
    """A number for a size."""
    return dim if isinstance(dim, int) else evaluate(dim, dict.fromkeys(symbols_of(dim), TYPICAL))


def divides(divisor: Dim, dividend: Dim) -> bool:
    """Whether `dividend` is a multiple of `divisor`, whatever the symbols are.

    >>> from stagewire.expr import symbol
    >>> divides(symbol("n"), symbol("n") * 6), divides(4, symbol("n") * 6), divides(0, 6)
    (True, False, False)
    """
    if isinstance(divisor, int) and isinstance(dividend, int):
        return divisor != 0 and dividend % divisor == 0
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
