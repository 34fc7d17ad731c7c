"""The values of size symbols in a call: read off the inputs of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stagewire.expr import Dim, Expr
from stagewire.graph import Value
from stagewire.types import ScalarType, TensorType

__all__ = ["bind_sizes", "bound_symbols", "size_reader"]

Reader = Callable[[Sequence[Any]], dict[str, int]]


def bound_symbols(value: Value) -> Iterator[tuple[str, str, int]]:
    """(symbol, "size" | "stride" | "number", dimension) of what an input gives a value to."""
    match value.type:
        case TensorType(shape=shape, stride=stride):
            for method, dims in (("size", shape), ("stride", stride)):
                for dim, size in enumerate(dims):
                    if _is_symbol(size):
                        yield str(size), method, dim
        case ScalarType(type="int"):
            yield value.name, "number", 0


def _is_symbol(dim: Dim) -> bool:
    return isinstance(dim, Expr) and dim.text.isidentifier()


def size_reader(inputs: Sequence[Value]) -> Reader | None:
    """A function of the inputs that gives the values of all symbols; None where there are none.

    >>> from stagewire.types import contiguous
    >>> from stagewire.expr import symbol
    >>> import torch
    >>> size_reader([Value("x", contiguous("float32", (symbol("s0"), 3)))])([torch.ones(5, 3)])
    {'s0': 5}
    """
    places: dict[str, tuple[int, str, int]] = {}
    for position, value in enumerate(inputs):
        for name, method, dim in bound_symbols(value):
            places.setdefault(name, (position, method, dim))
    if not places:
        return None
    steps = tuple(places.items())

    def read(given: Sequence[Any]) -> dict[str, int]:
        return {
            name: given[position] if method == "number" else getattr(given[position], method)(dim)
            for name, (position, method, dim) in steps
        }

    return read


def bind_sizes(inputs: Sequence[Value], given: Sequence[Any]) -> dict[str, int]:
    """The values of all symbols for these inputs."""
    reader = size_reader(inputs)
    return {} if reader is None else reader(given)
