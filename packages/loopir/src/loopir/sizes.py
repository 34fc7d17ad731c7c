"""What is known of symbolic sizes: comparisons that hold for every value.

A simplification must hold for all sizes: it asks `at_least`. (A decision takes estimates: `stagewire.sizes`.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from stagewire import polynomial
from stagewire.expr import Dim, Expr, polynomial_of
from stagewire.quotients import is_never_negative

Lower = Mapping[str, int]
NOTHING: Lower = MappingProxyType({})


def lower_bounds(sizes: Iterable[Dim]) -> Lower:
    """What symbols, and atoms that are never negative, are at least where loops of these sizes run at all: a product
    that is not 0 has no factor 0.

    >>> from stagewire.expr import parse_expr
    >>> lower_bounds([parse_expr("(n + 1)//(2) * m")])
    {'(n + 1)//(2)': 1, 'm': 1}
    """
    found: dict[str, int] = {}
    for size in sizes:
        if isinstance(size, Expr):
            poly = polynomial_of(size)
            if len(poly) == 1:
                found |= {name: 1 for name, _ in next(iter(poly)) if is_never_negative(name)}
    return found or NOTHING


def at_least(dim: Dim, number: int, lower: Lower = NOTHING) -> bool:
    """Whether dim >= number, whatever the symbols are: at least `lower`, where that says something.

    >>> from stagewire.expr import symbol
    >>> at_least(symbol("n") * 2 - symbol("n") - 1, 0, {"n": 1}), at_least(symbol("n"), 0)
    (True, False)
    """
    if isinstance(dim, int):
        return dim >= number
    least = polynomial.least(polynomial_of(dim), lower)
    return least is not None and least >= number
