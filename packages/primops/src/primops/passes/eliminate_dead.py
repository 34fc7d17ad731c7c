"""Drop nodes whose results nobody uses."""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.graph import Graph
from stagewire.graph_passes import live_nodes, with_nodes


@dataclass(frozen=True)
class EliminateDead:
    """After it, every node is used by a later node or an output, or has an effect."""

    def run(self, graph: Graph) -> Graph:
        kept = live_nodes(graph)
        return graph if len(kept) == len(graph.nodes) else with_nodes(graph, kept)
