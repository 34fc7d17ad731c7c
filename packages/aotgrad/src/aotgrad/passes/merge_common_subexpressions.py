"""Compute equal expressions once."""

from __future__ import annotations

import msgspec

from aotgrad.joint import Joint
from aotgrad.ops import is_repeatable
from stagewire.graph import Node
from stagewire.graph_passes import merge_equal

__all__ = ["MergeCommonSubexpressions"]

_ENCODE = msgspec.msgpack.Encoder().encode


class MergeCommonSubexpressions(msgspec.Struct, frozen=True):
    """After it, no two nodes of one phase have the same target and arguments, but for those with an effect.

    Phases are kept apart: a checkpoint recomputes in the backward what the forward has computed, on purpose.
    """

    def __call__(self, joint: Joint) -> Joint:
        return joint.with_graph(merge_equal(joint.graph, _key))


def _key(node: Node) -> bytes | None:
    # Encoded, 1 and 1.0 and True are different, as they are to an op.
    return _ENCODE((node.phase, node.target, node.args, node.kwargs)) if is_repeatable(node) else None
