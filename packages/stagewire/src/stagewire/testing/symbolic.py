"""Data over symbolic sizes, made from data over numbers, and back.

A generated graph over the size 101 is one over the symbol n: 202 reads as 2*n, 103 as n + 2. What reads so by chance
makes a graph that fits together at n = 101 alone, so whoever uses this looks at it at other values first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from stagewire.expr import Dim, Expr, evaluate, symbol
from stagewire.substitution import map_sizes

T = TypeVar("T")

BASE = 101
"""The size that stands for the symbol n."""
N = symbol("n")
_FAR = BASE // 2


def symbolised(value: T) -> T:
    """The data with every integer above half of BASE written in n, by its digits.

    >>> symbolised((3, 101, 101 * 101 + 4, 2 * 101 - 1))
    (3, Expr(text='n'), Expr(text='n**2 + 4'), Expr(text='2*n - 1'))
    """
    made: T = map_dims(value, lambda dim: _in_n(dim) if isinstance(dim, int) else dim)
    return made


def _in_n(number: int) -> Dim:
    if abs(number) <= _FAR:
        return number
    whole = (number + _FAR) // BASE
    return _in_n(whole) * N + (number - whole * BASE)


def factorised(value: T, symbols: Mapping[int, str]) -> T:
    """The data with every multiple of a number in `symbols` (primes that occur nowhere else) as one of its symbol.

    >>> factorised((26, 13 * 17, 5), {13: "b", 17: "s"})
    (Expr(text='2*b'), Expr(text='b*s'), 5)
    """

    def change(dim: Dim) -> Dim:
        factor: Dim = 1
        for prime, name in symbols.items():
            while isinstance(dim, int) and dim > 1 and dim % prime == 0:
                dim, factor = dim // prime, factor * symbol(name)
        return factor * dim

    made: T = map_dims(value, change)
    return made


def instantiated(value: T, values: Mapping[str, int]) -> T:
    """The data with every symbolic size as a number."""
    return map_sizes(value, lambda size: evaluate(size, values))


def map_dims(value: Any, change: Callable[[Dim], Dim]) -> Any:
    """The data with every integer and size in it changed; lines of the user stay."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | Expr):
        return change(value)
    if isinstance(value, tuple):
        return tuple(map_dims(item, change) for item in value)
    if isinstance(value, dict):
        return {key: map_dims(item, change) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        fields = {name: map_dims(getattr(value, name), change) for name in value.__struct_fields__ if name != "line"}
        return msgspec.structs.replace(value, **fields)
    return value
