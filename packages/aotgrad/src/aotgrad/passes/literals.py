"""What a program makes from literals alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from aotgrad.ops import is_pure
from stagewire.expr import Expr
from stagewire.graph import Graph, Node, Ref, leaves
from stagewire.graph_passes import live_nodes
from stagewire.types import ValueType


def literal_values(
    nodes: Iterable[Node], fits: Callable[[ValueType], bool], given: Mapping[str, ValueType]
) -> dict[str, ValueType]:
    """The types by name of what literals and the constants `given` alone decide, these among them; each one `fits`."""
    found = dict(given)
    for node in nodes:
        used = [leaf for arg in (*node.args, *node.kwargs.values()) for leaf in leaves(arg)]
        if any(isinstance(leaf, Expr) or (isinstance(leaf, Ref) and leaf.name not in found) for leaf in used):
            continue
        if is_pure(node) and all(fits(value.type) for value in node.results):
            found.update((value.name, value.type) for value in node.results)
    return found


def literal_nodes(nodes: Iterable[Node], known: Mapping[str, ValueType], names: Iterable[str]) -> tuple[Node, ...]:
    """The nodes that make these values of known ones, in order."""
    made = tuple(node for node in nodes if all(value.name in known for value in node.results))
    return live_nodes(Graph((), made, tuple(map(Ref, names))))
