"""Which size symbols a backward uses that its saved values do not show."""

from __future__ import annotations

from stagewire.graph import Node, Value
from stagewire.symbols import bound_symbols, symbols_of_nodes, symbols_of_type

__all__ = ["unbound_symbols"]


def unbound_symbols(saved: tuple[Value, ...], tangents: tuple[Value, ...], nodes: tuple[Node, ...]) -> tuple[str, ...]:
    """The symbols to hand over as numbers: tangents do not show one, for a backward may run without some of them."""
    bound = {name for value in saved for name, _, _ in bound_symbols(value)}
    used = symbols_of_nodes(nodes).union(*(symbols_of_type(value.type) for value in (*saved, *tangents)))
    return tuple(sorted(used - bound))
