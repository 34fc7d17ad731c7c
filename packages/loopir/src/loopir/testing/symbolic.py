"""Graphs over symbolic sizes, made from graphs over numbers, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from stagewire.expr import Dim, Expr, evaluate, symbol

T = TypeVar("T")


def symbolised(document: T, symbols: Mapping[int, str]) -> T:
    """The document with each size, stride and integer argument that is a multiple of a number in `symbols` (primes that
    occur nowhere else) written as a multiple of the symbol."""

    def change(number: int) -> Dim:
        factor: Dim = 1
        for prime, name in symbols.items():
            while number > 1 and number % prime == 0:
                number, factor = number // prime, factor * symbol(name)
        return factor * number

    return map_dims(document, lambda dim: change(dim) if isinstance(dim, int) else dim)


def instantiated(document: T, values: Mapping[str, int]) -> T:
    """The document with every symbol replaced by a number."""
    return map_dims(document, lambda dim: evaluate(dim, values))


def map_dims(value: Any, change: Callable[[Dim], Dim]) -> Any:
    """The data with every integer and size in it changed."""
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
