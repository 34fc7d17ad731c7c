"""Which size symbols a backward uses that its saved values do not show."""

from __future__ import annotations

from collections.abc import Iterator

from absint.symbolic import bound_symbols
from stagewire.expr import Expr, symbols_of
from stagewire.graph import Node, Value, leaves
from stagewire.types import TensorType

__all__ = ["unbound_symbols"]


def unbound_symbols(saved: tuple[Value, ...], tangents: tuple[Value, ...], nodes: tuple[Node, ...]) -> tuple[str, ...]:
    """The symbols to hand over as numbers: tangents do not show one, for a backward may run without some of them."""
    bound = {name for value in saved for name, _, _ in bound_symbols(value)}
    seen: set[Expr] = set()
    for value in (*saved, *tangents):
        seen.update(_sizes_of_type(value))
    for node in nodes:
        for arg in (*node.args, *node.kwargs.values()):
            seen.update(leaf for leaf in leaves(arg) if isinstance(leaf, Expr))
        for value in node.results:
            seen.update(_sizes_of_type(value))
    used = {name for size in seen for name in symbols_of(size)}
    return tuple(sorted(used - bound))


def _sizes_of_type(value: Value) -> Iterator[Expr]:
    if isinstance(value.type, TensorType):
        dims = (*value.type.shape, *value.type.stride, value.type.storage_offset)
        yield from (dim for dim in dims if isinstance(dim, Expr))
