"""Drop nodes whose results nobody uses, but for those that may raise because of their data."""

from __future__ import annotations

import msgspec

from aotgrad.joint import Joint
from aotgrad.operands import operands
from aotgrad.passes.data_errors import kept_for_their_errors
from stagewire.graph import Graph, Node, references

__all__ = ["RemoveDeadCode", "live_nodes"]


class RemoveDeadCode(msgspec.Struct, frozen=True):
    """After it, every node is used by a later node or an output, or has an effect.

    A node of the forward that may raise because of its data (`absint.data_errors`) has the effect "acts" where no
    result of the forward needs it: it stays for its error.
    """

    def __call__(self, joint: Joint) -> Joint:
        graph = kept_for_their_errors(joint.graph, joint.results)
        kept = live_nodes(graph)
        if len(kept) == len(graph.nodes) and graph is joint.graph:
            return joint
        return joint.with_graph(Graph(graph.inputs, kept, graph.outputs))


def live_nodes(graph: Graph) -> tuple[Node, ...]:
    """The nodes that matter, in order."""
    needed = {name for arg in graph.outputs for name in references(arg)}
    kept = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint([value.name for value in node.results]) or node.effect is not None:
            needed.update(operands(node))
            kept.append(node)
    return tuple(reversed(kept))
