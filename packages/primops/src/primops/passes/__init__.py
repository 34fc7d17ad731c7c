"""Passes over Prim graphs: each a frozen dataclass with `run(graph) -> graph`; `DEFAULT_PASSES` in their order."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from absint import schema
from absint.targets import resolve
from primops.passes.fold_constants import FoldConstants
from primops.passes.remove_identities import RemoveIdentities
from stagewire.graph import LASTING, Graph, Node
from stagewire.graph_passes import live_nodes, merge_equal, output_names, with_nodes
from stagewire.vocabulary import is_prim

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class EliminateCommon:
    """After it, no two calls have the same target, arguments and types, unless both are outputs of the graph, or one is
    a gradient and the other a value of the forward: these have memory of their own, as eager's have.

    Values of different stated layout stay apart: an extern may read one. What has an effect is left alone. Phases are
    kept apart in calls of ATen: a checkpoint computes in the backward what the forward has computed, on purpose.
    """

    def run(self, graph: Graph) -> Graph:
        outputs = output_names(graph)
        returned = set(outputs)

        def stays(node: Node, first: Node) -> bool:
            if not any(value.name in outputs for value in node.results):
                return False
            kept = {value.name for value in first.results}
            if not returned.isdisjoint(kept) or not node.phase == first.phase == "backward":
                return True
            returned.update(kept)  # it is the output instead
            return False

        return merge_equal(graph, _key, stays)


def _key(node: Node) -> bytes | None:
    # Encoded, 1 and 1.0 and True are different, as they are to an op.
    target, types = node.target, [value.type for value in node.results]
    if node.effect in LASTING or target == "prims.clone":
        return None
    if is_prim(target):
        return _encode((target, node.args, types))
    if not target.startswith("aten.") or schema.record_of(resolve(target)).is_unwritten:
        return None
    return _encode((target, node.args, node.kwargs, types, node.phase))


@dataclass(frozen=True)
class EliminateDead:
    """After it, every node is used by a later node or an output, or has an effect."""

    def run(self, graph: Graph) -> Graph:
        kept = live_nodes(graph)
        return graph if len(kept) == len(graph.nodes) else with_nodes(graph, kept)


Pass = FoldConstants | RemoveIdentities | EliminateCommon | EliminateDead
DEFAULT_PASSES: tuple[Pass, ...] = (FoldConstants(), RemoveIdentities(), EliminateCommon(), EliminateDead())
