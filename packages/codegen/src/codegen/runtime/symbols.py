"""Symbolic sizes: their values, read from the shapes of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stagewire.expr import Dim, Expr, evaluate
from stagewire.program import Unit

Symbols = dict[str, int]


def symbol_reader(unit: Unit) -> Callable[[Sequence[Any]], Symbols]:
    """A function from the input tensors to the values of the symbols that their types name."""
    places: dict[str, tuple[int, int]] = {}
    for position, type_ in enumerate(unit.input_types):
        for dimension, size in enumerate(type_.shape):
            if isinstance(size, Expr) and size.text.isidentifier():
                places.setdefault(size.text, (position, dimension))
    if not places:
        return lambda inputs: {}
    rows = tuple((name, *place) for name, place in places.items())
    return lambda inputs: {name: inputs[position].shape[dimension] for name, position, dimension in rows}


def sizes(dims: Sequence[Dim], symbols: Symbols) -> tuple[int, ...]:
    """Numbers for sizes."""
    return tuple(dim if isinstance(dim, int) else evaluate(dim, symbols) for dim in dims)
