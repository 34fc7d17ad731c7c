"""Compute equal expressions once."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from primops.passes.renaming import output_names, renamed_node, with_nodes
from stagewire.graph import Graph, Node

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class EliminateCommon:
    """After it, no two prims have the same name, arguments and type, unless both are outputs of the graph.

    Values of different stated layout stay apart: an extern may read one. Externs and random prims are left alone.
    """

    def run(self, graph: Graph) -> Graph:
        outputs = output_names(graph)
        names: dict[str, str] = {}
        seen: dict[bytes, Node] = {}
        nodes: list[Node] = []
        for node in graph.nodes:
            node = renamed_node(node, names)
            if not node.target.startswith("prims.") or node.target == "prims.clone" or node.effect is not None:
                nodes.append(node)
                continue
            # Encoded, 1 and 1.0 and True are different, as they are to a prim.
            key = _encode((node.target, node.args, node.results[0].type))
            other = seen.setdefault(key, node)
            if other is node or any(value.name in outputs for value in node.results):
                nodes.append(node)
                continue
            for old, new in zip(node.results, other.results, strict=True):
                names[old.name] = new.name
        return with_nodes(graph, nodes, names) if names else graph
