"""Drop nodes whose results nobody uses; what may raise of them stays as a check."""

from __future__ import annotations

import msgspec

from aotgrad.joint import Joint
from aotgrad.operands import operands
from aotgrad.passes.dropped_checks import checks_of_dropped
from stagewire.graph import Graph, Node, references

__all__ = ["RemoveDeadCode", "live_nodes"]


class RemoveDeadCode(msgspec.Struct, frozen=True):
    """After it, every node is used by a later node or an output, or has an effect.

    A node of the forward that is dropped and could raise because of its data (`aotgrad.raising`) leaves a check of its
    operand alone (`dropped_checks`). The backward computes again what the forward has checked.
    """

    def __call__(self, joint: Joint) -> Joint:
        graph = joint.graph
        kept = live_nodes(graph)
        if len(kept) == len(graph.nodes):
            return joint
        checks = checks_of_dropped(graph, kept)
        if checks:
            nodes = [one for node in graph.nodes for one in (*checks.get(id(node), ()), node)]
            kept = live_nodes(Graph(graph.inputs, tuple(nodes), graph.outputs))
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
