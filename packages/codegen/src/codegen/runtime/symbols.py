"""Symbolic sizes: their values, read from the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stagewire.expr import Dim, Expr, evaluate
from stagewire.program import Unit
from stagewire.types import ScalarType, TensorType

Symbols = dict[str, int]


VALUE, SIZE, STRIDE = 0, 1, 2
"""What of an input a symbol is: the integer itself, the size or the stride of one of its dimensions."""


def symbol_places(unit: Unit) -> dict[str, tuple[int, int, int]]:
    """For each symbol that the inputs bind: (input, VALUE, SIZE or STRIDE, dimension)."""
    places: dict[str, tuple[int, int, int]] = {}
    for position, (name, type_) in enumerate(zip(unit.inputs, unit.input_types, strict=True)):
        if isinstance(type_, ScalarType):
            places.setdefault(name, (position, VALUE, 0))
    for what in (SIZE, STRIDE):
        for position, type_ in enumerate(unit.input_types):
            if isinstance(type_, TensorType):
                for dimension, dim in enumerate(type_.shape if what == SIZE else type_.stride):
                    if isinstance(dim, Expr) and dim.text.isidentifier():
                        places.setdefault(dim.text, (position, what, dimension))
    return places


def symbol_reader(unit: Unit) -> Callable[[Sequence[Any]], Symbols]:
    """A function from the inputs to the values of the symbols that their types name."""
    rows = tuple(symbol_places(unit).items())
    if not rows:
        return lambda inputs: {}
    return lambda inputs: {name: _read(inputs[position], what, dimension) for name, (position, what, dimension) in rows}


def _read(given: Any, what: int, dimension: int) -> int:
    if what == VALUE:
        return int(given)
    return given.shape[dimension] if what == SIZE else given.stride(dimension)


def sizes(dims: Sequence[Dim], symbols: Symbols) -> tuple[int, ...]:
    """Numbers for sizes."""
    return tuple(dim if isinstance(dim, int) else evaluate(dim, symbols) for dim in dims)


def with_values(type_: TensorType, symbols: Symbols) -> TensorType:
    """The type in numbers."""
    shape, stride = sizes(type_.shape, symbols), sizes(type_.stride, symbols)
    return msgspec.structs.replace(type_, shape=shape, stride=stride)
