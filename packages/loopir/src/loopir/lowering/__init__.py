"""Prim graphs to schedules: one nest (or a few) for every prim, nothing fused yet.

`LOWERINGS` maps a prim's name to its parameter names and its lowering; a lowering records nests through the builder.
Everything that is not a prim becomes an `Extern`. A distribution with prims of its own registers their lowerings, by
"namespace.name", in the group of entry points `stagefold.lowerings`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loopir.errors import UnsupportedPrim
from loopir.lowering import indexing, pointwise, reduction, shape, windows
from loopir.lowering.context import Call, Lowering, bind, with_symbols
from loopir.lowering.windows import is_call
from loopir.schedule import Schedule
from stagewire.graph import Graph, Node, node_references, references
from stagewire.graph_passes import live_nodes
from stagewire.loop import Extern
from stagewire.sizes import NO_HINTS, Hints
from stagewire.stage import Table
from stagewire.types import ScalarType, TensorType
from stagewire.vocabulary import is_prim

Lower = Callable[[Lowering, Call], None]

LOWERINGS: dict[str, tuple[tuple[str, ...], Lower]] = {
    **pointwise.TABLE,
    **shape.TABLE,
    **reduction.TABLE,
    **indexing.TABLE,
    **windows.TABLE,
}
BY_TARGET = Table("stagefold.lowerings", {f"prims.{name}": lowering for name, lowering in LOWERINGS.items()})


def lower_graph(graph: Graph, private: frozenset[int] = frozenset(), hints: Hints = NO_HINTS) -> Schedule:
    """The schedule that computes `graph` prim by prim. `private`: positions of outputs that no user sees."""
    symbols = tuple(value.name for value in graph.inputs if not isinstance(value.type, TensorType))
    graph = with_symbols(graph, symbols) if symbols else graph
    nodes = live_nodes(graph)
    lowering = Lowering(_wanted(graph, nodes), hints)
    for value in graph.inputs:
        if isinstance(value.type, TensorType):
            lowering.declare(value.name, value.type, "input")
        elif value.type != ScalarType("int"):
            raise UnsupportedPrim(
                f"graph input {value.name} is no tensor and no integer", fix="Capture the number as a constant."
            )
    for node in nodes:
        lower_node(lowering, node)
    for arg in graph.outputs:
        for name in references(arg):
            lowering.materialise(name)
    return Schedule(
        buffers=lowering.buffers,
        inputs=tuple(value.name for value in graph.inputs),
        outputs=graph.outputs,
        items=tuple(lowering.items),
        fresh=lowering.names.count,
        private=private,
        symbols=symbols,
        hints=dict(hints),
    )


def _wanted(graph: Graph, nodes: Sequence[Node]) -> frozenset[str]:
    """Values that must be buffers: the outputs, and the operands of calls."""
    names = {name for arg in graph.outputs for name in references(arg)}
    for node in nodes:
        if is_call(node.target):
            names.update(node_references(node))
    return frozenset(names)


def lower_node(lowering: Lowering, node: Node) -> None:
    """Append what computes one node."""
    if not is_prim(node.target):
        _lower_extern(lowering, node)
        return
    found = BY_TARGET.get(node.target)
    if found is None:
        raise UnsupportedPrim(f"no lowering for {node.target}; known: {' '.join(sorted(LOWERINGS))}", where=node.line)
    parameters, lower = found
    lower(lowering, bind(node.target.partition(".")[2], parameters, node, lowering.types))


def _lower_extern(lowering: Lowering, node: Node) -> None:
    results = lowering.declare_results(node, "extern")
    lowering.extern(Extern(node.target, node.args, node.kwargs, results, node.line, node.effect))


__all__ = ["LOWERINGS", "lower_graph", "lower_node"]
