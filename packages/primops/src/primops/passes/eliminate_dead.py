"""Drop nodes whose results nobody uses."""

from __future__ import annotations

from dataclasses import dataclass

from primops.passes.renaming import output_names, used_names, with_nodes
from stagewire.graph import Graph, Node


@dataclass(frozen=True)
class EliminateDead:
    """After it, every node is used by a later node or an output, or has an effect."""

    def run(self, graph: Graph) -> Graph:
        needed = output_names(graph)
        kept: list[Node] = []
        for node in reversed(graph.nodes):
            results = node.results
            if (results and results[0].name in needed) or _is_needed(node, needed):
                needed.update(used_names(node))
                kept.append(node)
        if len(kept) == len(graph.nodes):
            return graph
        kept.reverse()
        return with_nodes(graph, kept)


def _is_needed(node: Node, needed: set[str]) -> bool:
    return any(value.name in needed for value in node.results) or node.effect is not None
