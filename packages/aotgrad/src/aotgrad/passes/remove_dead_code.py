"""Drop nodes whose results nobody uses."""

from __future__ import annotations

import msgspec

from aotgrad.joint import Joint
from aotgrad.ops import has_effect
from stagewire.graph import Graph, Node, node_references, references

__all__ = ["RemoveDeadCode", "live_nodes"]


class RemoveDeadCode(msgspec.Struct, frozen=True):
    """After it, every node is used by a later node or an output, draws random numbers, or may raise on purpose."""

    def __call__(self, joint: Joint) -> Joint:
        graph = joint.graph
        return joint.with_graph(Graph(graph.inputs, live_nodes(graph), graph.outputs))


def live_nodes(graph: Graph) -> tuple[Node, ...]:
    """The nodes that matter, in order."""
    needed = {name for arg in graph.outputs for name in references(arg)}
    kept = []
    for node in reversed(graph.nodes):
        if has_effect(node.target) or any(value.name in needed for value in node.results):
            needed.update(node_references(node))
            kept.append(node)
    return tuple(reversed(kept))
