"""Drop nodes whose results nobody uses."""

from __future__ import annotations

import msgspec

from aotgrad.joint import Joint
from aotgrad.operands import operands
from aotgrad.ops import has_effect
from stagewire.graph import Graph, Node, references

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
        if not needed.isdisjoint([value.name for value in node.results]) or has_effect(node.target):
            needed.update(operands(node))
            kept.append(node)
    return tuple(reversed(kept))
