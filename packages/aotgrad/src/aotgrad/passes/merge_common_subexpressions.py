"""Compute equal expressions once."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from aotgrad.joint import Joint
from aotgrad.operands import operands
from aotgrad.ops import is_repeatable
from stagewire.graph import Graph, Node, rename

__all__ = ["MergeCommonSubexpressions"]

_ENCODE = msgspec.msgpack.Encoder().encode


class MergeCommonSubexpressions(msgspec.Struct, frozen=True):
    """After it, no two nodes of one phase have the same target and arguments, but for those with an effect.

    Phases are kept apart: a checkpoint recomputes in the backward what the forward has computed, on purpose.
    """

    def __call__(self, joint: Joint) -> Joint:
        names: dict[str, str] = {}
        seen: dict[bytes, Node] = {}
        nodes: list[Node] = []
        for node in joint.graph.nodes:
            node = rename_node(node, names)
            if not is_repeatable(node):
                nodes.append(node)
                continue
            # Encoded, 1 and 1.0 and True are different, as they are to an op.
            key = _ENCODE((node.phase, node.target, node.args, node.kwargs))
            other = seen.get(key)
            if other is None:
                seen[key] = node
                nodes.append(node)
                continue
            for old, new in zip(node.results, other.results, strict=True):
                names[old.name] = new.name
        outputs = tuple(rename(arg, names) for arg in joint.graph.outputs)
        return joint.with_graph(Graph(joint.graph.inputs, tuple(nodes), outputs))


def rename_node(node: Node, names: dict[str, str]) -> Node:
    """`node` with the values it uses renamed."""
    if not names or names.keys().isdisjoint(operands(node)):
        return node
    args = tuple([rename(arg, names) for arg in node.args])
    return replace(node, args=args, kwargs={key: rename(arg, names) for key, arg in node.kwargs.items()})
