"""What is known of symbolic sizes: comparisons that hold for every value.

A simplification must hold for all sizes: it asks `at_least`. (A decision takes estimates: `stagewire.sizes`.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from stagewire import polynomial
from stagewire.expr import Dim, Expr, polynomial_of

Lower = Mapping[str, int]
NOTHING: Lower = MappingProxyType({})


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
