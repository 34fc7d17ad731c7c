"""Symbolic sizes: their values, read from the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stagewire.expr import Dim, evaluate
from stagewire.graph import Value
from stagewire.program import Unit
from stagewire.symbols import size_reader
from stagewire.types import TensorType

Symbols = dict[str, int]


def inputs_of(unit: Unit) -> tuple[Value, ...]:
    """The inputs of a unit, with their types."""
    return tuple(Value(name, type_) for name, type_ in zip(unit.inputs, unit.input_types, strict=True))


def symbol_reader(unit: Unit) -> Callable[[Sequence[Any]], Symbols]:
    """A function from the inputs to the values of the symbols that their types name."""
    return size_reader(inputs_of(unit)) or (lambda inputs: {})


def sizes(dims: Sequence[Dim], symbols: Symbols) -> tuple[int, ...]:
    """Numbers for sizes."""
    return tuple(dim if isinstance(dim, int) else evaluate(dim, symbols) for dim in dims)


def with_values(type_: TensorType, symbols: Symbols) -> TensorType:
    """The type in numbers."""
    shape, stride = sizes(type_.shape, symbols), sizes(type_.stride, symbols)
    return msgspec.structs.replace(type_, shape=shape, stride=stride)
