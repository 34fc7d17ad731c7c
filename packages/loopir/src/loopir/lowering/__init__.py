"""Prim graphs to schedules: one nest (or a few) for every prim, nothing fused yet.

`LOWERINGS` maps a prim's name to its parameter names and its lowering; a lowering records nests through the builder.
Everything that is not a prim becomes an `Extern`.
"""

from __future__ import annotations

from collections.abc import Callable

from stagewire.graph import Graph, Node
from stagewire.loop import Extern
from stagewire.types import TensorType

from loopir.errors import UnsupportedPrim
from loopir.lowering import create, indexing, pointwise, reduction, scan, shape
from loopir.lowering.call import Call, bind
from loopir.lowering.context import Lowering
from loopir.nest import Schedule

Lower = Callable[[Lowering, Call], None]

LOWERINGS: dict[str, tuple[tuple[str, ...], Lower]] = {
    **pointwise.TABLE,
    **shape.TABLE,
    **create.TABLE,
    **reduction.TABLE,
    **indexing.TABLE,
    **scan.TABLE,
}
PREFIX = "prims."


def lower_graph(graph: Graph, private: frozenset[int] = frozenset()) -> Schedule:
    """The schedule that computes `graph` prim by prim. `private`: positions of outputs that no user sees."""
    lowering = Lowering()
    for value in graph.inputs:
        if not isinstance(value.type, TensorType):
            raise UnsupportedPrim(f"graph input {value.name} is no tensor", fix="Symbolic sizes come with part 5.")
        lowering.declare(value.name, value.type, "input")
    for node in graph.nodes:
        lower_node(lowering, node)
    return Schedule(
        buffers=lowering.buffers,
        inputs=tuple(value.name for value in graph.inputs),
        outputs=graph.outputs,
        items=tuple(lowering.items),
        fresh=lowering.names.count,
        private=private,
    )


def lower_node(lowering: Lowering, node: Node) -> None:
    """Append what computes one node."""
    if not node.target.startswith(PREFIX):
        _lower_extern(lowering, node)
        return
    name = node.target[len(PREFIX) :]
    found = LOWERINGS.get(name)
    if found is None:
        where = str(node.line) if node.line else None
        raise UnsupportedPrim(f"no lowering for {node.target}; known: {' '.join(sorted(LOWERINGS))}", where=where)
    parameters, lower = found
    lower(lowering, bind(name, parameters, node, lowering.types))


def _lower_extern(lowering: Lowering, node: Node) -> None:
    results = []
    for value in node.results:
        if isinstance(value.type, TensorType):
            lowering.declare(value.name, value.type, "extern")
        results.append(value.name if isinstance(value.type, TensorType) else "")
    lowering.extern(Extern(node.target, node.args, node.kwargs, tuple(results), node.line))


__all__ = ["LOWERINGS", "lower_graph", "lower_node"]
