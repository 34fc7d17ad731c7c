"""Symbolic sizes as numbers: rough ones for decisions; divisions and comparisons that hold for every value.

A decision (loop order, what to recompute, which plan is cheaper) takes each symbol for `TYPICAL`: it may be slow for a
size, never wrong. A simplification asks `divides` and `at_least`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from stagewire.bounds import Ranges, bounds_of
from stagewire.capture import Symbol
from stagewire.expr import Dim, Expr, dim_of, evaluate, polynomial_of, symbols_of
from stagewire.polynomial import Atom, Polynomial

TYPICAL = 64
"""The value of a symbol in estimates: a batch, or a short sequence."""


Hints = Mapping[str, int]
"""What symbols were, roughly, when a program was made."""

NO_HINTS: Hints = MappingProxyType({})


def hints_of(symbols: Iterable[Symbol]) -> Hints:
    """The hints, each rounded up to a power of two: programs that were made at nearly the same sizes are the same."""
    return {one.name: 1 << max(one.hint - 1, 0).bit_length() for one in symbols if one.hint is not None}


def rough(dim: Dim, hints: Hints) -> int:
    """A number for a size, by the hints for its symbols; one without counts as `TYPICAL`.

    >>> from stagewire.expr import symbol
    >>> rough(symbol("n") * symbol("m"), {"n": 8})
    512
    """
    if isinstance(dim, int):
        return dim
    return evaluate(dim, {name: hints.get(name, TYPICAL) for name in symbols_of(dim)})


@lru_cache(maxsize=16384)
def estimate(dim: Dim) -> int:
    """A number for a size."""
    return dim if isinstance(dim, int) else evaluate(dim, dict.fromkeys(symbols_of(dim), TYPICAL))


def divides(divisor: Dim, dividend: Dim) -> bool:
    """Whether `dividend` is a multiple of `divisor`, whatever the symbols are.

    >>> from stagewire.expr import symbol
    >>> divides(symbol("n"), symbol("n") * 6), divides(4, symbol("n") * 6), divides(0, 6)
    (True, False, False)
    >>> divides(symbol("n") // 4, symbol("n") // 4 * symbol("m"))
    True
    """
    if isinstance(divisor, int) and isinstance(dividend, int):
        return divisor != 0 and dividend % divisor == 0
    found = polynomial_of(dividend).divide(polynomial_of(divisor))
    return found is not None and not found[1]


def divide(dividend: Dim, divisor: Dim) -> tuple[Dim, Dim]:
    """(quotient, rest), the rest being what no multiple of the divisor takes away: it may have any size."""
    found = polynomial_of(dividend).divide(polynomial_of(divisor))
    return (0, dividend) if found is None else (dim_of(found[0]), dim_of(found[1]))


def lower_bounds(sizes: Iterable[Dim]) -> Ranges:
    """What symbols, and atoms that are never negative, are at least where loops of these sizes run at all: a product
    that is not 0 has no factor 0.

    >>> from stagewire.expr import parse_expr
    >>> lower_bounds([parse_expr("(n + 1)//(2) * m")])
    (('(n + 1)//(2)', (1, None)), ('m', (1, None)))
    """
    found = dict[str, None]()
    for size in sizes:
        if isinstance(size, Expr):
            terms = polynomial_of(size).terms
            if len(terms) == 1:
                found |= {str(atom): None for atom, _ in next(iter(terms)) if _is_never_negative(atom)}
    return tuple([(name, (1, None)) for name in found])


def _is_never_negative(atom: Atom) -> bool:
    """Whether it is at least 0 where symbols (sizes) are, as far as that is seen."""
    low = bounds_of(Polynomial({((atom, 1),): 1}), (), (0, None))[0]
    return low is not None and low >= 0


def at_least(dim: Dim, number: int, lower: Ranges = ()) -> bool:
    """Whether dim >= number, whatever the symbols are: at least `lower`, where that says something.

    >>> from stagewire.expr import symbol
    >>> at_least(symbol("n") * 2 - symbol("n") - 1, 0, (("n", (1, None)),)), at_least(symbol("n"), 0)
    (True, False)
    """
    if isinstance(dim, int):
        return dim >= number
    least = bounds_of(polynomial_of(dim), lower)[0]
    return least is not None and least >= number
