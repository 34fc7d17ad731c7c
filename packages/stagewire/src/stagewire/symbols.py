"""The size symbols of a graph: which are used, and where its inputs give them values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from stagewire.expr import Expr, symbols_of
from stagewire.graph import Node, leaves
from stagewire.types import ScalarType, TensorType, ValueType

What = Literal["number", "size", "stride"]
Reader = Callable[[Sequence[Any]], dict[str, int]]


class Typed(Protocol):
    """A `Value`, a `BoundInput`, ..."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> ValueType: ...


class Place(NamedTuple):
    """Input number `input` is the symbol itself ("number"), or has it as the size or the stride of a dimension."""

    input: int
    what: What
    dimension: int = 0


def bound_symbols(value: Typed) -> Iterator[tuple[str, What, int]]:
    """(symbol, what of the input it is, dimension) of what an input gives a value to."""
    match value.type:
        case TensorType(shape=shape, stride=stride):
            for dimension, size in enumerate(shape):
                if isinstance(size, Expr) and size.text.isidentifier():
                    yield size.text, "size", dimension
            for dimension, step in enumerate(stride):
                if isinstance(step, Expr) and step.text.isidentifier():
                    yield step.text, "stride", dimension
        case ScalarType(type="int"):
            yield value.name, "number", 0


def symbol_places(inputs: Sequence[Typed]) -> dict[str, Place]:
    """Where each symbol is found: as a number if an input is that, else as a size, and only then as a stride, which
    means nothing where a dimension has one element.

    >>> from stagewire.graph import Value
    >>> from stagewire.types import contiguous
    >>> symbol_places([Value("x", contiguous("float32", (3, Expr("n"))))])
    {'n': Place(input=0, what='size', dimension=1)}
    """
    found: dict[str, Place] = {}
    rows = [
        (name, Place(number, what, dimension))
        for number, one in enumerate(inputs)
        for name, what, dimension in bound_symbols(one)
    ]
    for what in ("number", "size", "stride"):
        for name, place in rows:
            if place.what == what:
                found.setdefault(name, place)
    return found


def size_reader(inputs: Sequence[Typed]) -> Reader | None:
    """A function of the inputs (tensors, integers) that gives the values of the symbols; None where there are none."""
    steps = tuple((name, *place) for name, place in symbol_places(inputs).items())
    if not steps:
        return None

    def read(given: Sequence[Any]) -> dict[str, int]:
        return {
            name: given[number] if what == "number" else getattr(given[number], what)(dimension)
            for name, number, what, dimension in steps
        }

    return read


def bind_sizes(inputs: Sequence[Typed], given: Sequence[Any]) -> dict[str, int]:
    """The values of all symbols for these inputs."""
    reader = size_reader(inputs)
    return {} if reader is None else reader(given)


def symbols_of_type(type: ValueType) -> set[str]:
    """The symbols in the sizes, the strides and the offset of a tensor."""
    if not isinstance(type, TensorType):
        return set()
    dims = (*type.shape, *type.stride, type.storage_offset)
    return {name for dim in dims if isinstance(dim, Expr) for name in symbols_of(dim)}


def symbols_of_nodes(nodes: Iterable[Node]) -> set[str]:
    """The symbols in the arguments of these nodes and in the types of their results."""
    found: set[str] = set()
    for node in nodes:
        for arg in (*node.args, *node.kwargs.values()):
            for leaf in leaves(arg):
                if isinstance(leaf, Expr):
                    found |= symbols_of(leaf)
        for value in node.results:
            found |= symbols_of_type(value.type)
    return found
