"""Equal prims merged, and dead nodes dropped."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from stagewire.graph import Graph, Node
from stagewire.graph_passes import live_nodes, merge_equal, output_names, with_nodes

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class EliminateCommon:
    """After it, no two prims have the same name, arguments and type, unless both are outputs of the graph.

    Values of different stated layout stay apart: an extern may read one. Externs and random prims are left alone.
    """

    def run(self, graph: Graph) -> Graph:
        return merge_equal(graph, _key, output_names(graph))


def _key(node: Node) -> bytes | None:
    if not node.target.startswith("prims.") or node.target == "prims.clone" or node.effect is not None:
        return None
    # Encoded, 1 and 1.0 and True are different, as they are to a prim.
    return _encode((node.target, node.args, node.results[0].type))


@dataclass(frozen=True)
class EliminateDead:
    """After it, every node is used by a later node or an output, or has an effect."""

    def run(self, graph: Graph) -> Graph:
        kept = live_nodes(graph)
        return graph if len(kept) == len(graph.nodes) else with_nodes(graph, kept)
