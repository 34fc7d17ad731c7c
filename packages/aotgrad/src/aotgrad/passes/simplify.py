"""Passes that leave nodes out: dead code, views that change nothing, calls made before."""

from __future__ import annotations

import msgspec

from aotgrad.joint import Joint
from aotgrad.ops import is_repeatable, is_view
from aotgrad.passes.data_errors import kept_for_their_errors
from stagewire.graph import Graph, Node, Ref, Value
from stagewire.graph_passes import live_nodes, merge_equal, rename, rename_node, with_nodes
from stagewire.types import TensorType, ValueType


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
        return joint.with_graph(with_nodes(graph, kept))


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


# Views that change the meaning of the bytes without changing shape, strides or dtype.
_REINTERPRETING = frozenset(("aten._conj.default", "aten._neg_view.default"))


class RemoveIdentityViews(msgspec.Struct, frozen=True):
    """After it, no view has the shape, strides, offset and dtype of a value that it is a view of.

    `t(t(x))`, a `view` to the same shape and an `expand` to the same sizes all become `x`.
    """

    def __call__(self, joint: Joint) -> Joint:
        names: dict[str, str] = {}
        ancestors: dict[str, tuple[Value, ...]] = {value.name: (value,) for value in joint.graph.inputs}
        nodes: list[Node] = []
        for node in joint.graph.nodes:
            node = rename_node(node, names)
            same = _seen_before(node, ancestors)
            if same is not None:
                names[node.results[0].name] = same.name
            else:
                nodes.append(node)
                _remember(node, ancestors)
        outputs = tuple(rename(arg, names) for arg in joint.graph.outputs)
        return joint.with_graph(Graph(joint.graph.inputs, tuple(nodes), outputs))


def _is_plain_view(node: Node) -> bool:
    return len(node.results) == 1 and node.target not in _REINTERPRETING and is_view(node.target)


def _seen_before(node: Node, ancestors: dict[str, tuple[Value, ...]]) -> Value | None:
    if not _is_plain_view(node) or not isinstance(node.args[0], Ref):
        return None
    kind = node.results[0].type
    for value in ancestors[node.args[0].name]:
        if _same_layout(value.type, kind):
            return value
    return None


def _same_layout(first: ValueType, second: ValueType) -> bool:
    return (
        isinstance(first, TensorType)
        and isinstance(second, TensorType)
        and first.shape == second.shape
        and first.stride == second.stride
        and first.dtype == second.dtype
        and first.storage_offset == second.storage_offset
    )


def _remember(node: Node, ancestors: dict[str, tuple[Value, ...]]) -> None:
    inherited: tuple[Value, ...] = ()
    if _is_plain_view(node) and isinstance(node.args[0], Ref):
        inherited = ancestors[node.args[0].name]
    for value in node.results:
        ancestors[value.name] = (value, *inherited)
