"""Layout: channels last through the convolutions of a graph of ATen calls, for oneDNN on a CPU.

Strides of values inside of a graph are free, but for calls that address memory; they are binding for calls, so that a
convolution is given, and gives, channels last: no copy is needed. (On a GPU, where images have to be copied at the ends
and calls of both directions are looked at, it is a pass over loops: `loopir.passes.channels_last`.)

Depthwise convolutions are loops in this layout, and 1x1 ones products (`decompositions.convolution_rules`); oneDNN,
too, computes the former at twice the speed. Others it computes as fast as before, and reorders their weights in each
call, which is why networks without depthwise convolutions keep their layout (a ResNet-18 at batch 8: 0.6 of the speed).
Symbolic sizes make no difference.
"""

from __future__ import annotations

import msgspec

from stagewire.graph import Graph, Node, Ref, Value, definitions, node_references, references
from stagewire.types import TensorType, channels_last_stride

CONVOLUTION = "aten.convolution.default"

FOLLOWS = frozenset(
    """
    aten.add.Tensor aten.add.Scalar aten.sub.Tensor aten.mul.Tensor aten.mul.Scalar aten.div.Tensor aten.relu.default
    aten.silu.default aten.hardswish.default aten.hardtanh.default aten.hardsigmoid.default aten.sigmoid.default
    aten.tanh.default aten.gelu.default aten.elu.default aten.leaky_relu.default aten.clamp.default aten.clone.default
    aten.native_batch_norm.default aten._native_batch_norm_legit_no_training.default aten._to_copy.default
    aten.max_pool2d_with_indices.default aten.avg_pool2d.default aten.cat.default aten.constant_pad_nd.default
    aten.upsample_nearest2d.default aten.upsample_nearest2d.vec aten.upsample_bilinear2d.default
    aten.upsample_bilinear2d.vec
    """.split()  # noqa: SIM905
)
"""Calls whose result takes the layout of its operands."""

READ_BY_PLANE = frozenset(("aten.native_group_norm.default", "aten.instance_norm.default"))
"""Calls that sum over planes: with channels last they lose more than convolutions gain (a UNet with group norms and
packed weights runs at 0.65 of the speed that it has without)."""


def may_turn(graph: Graph) -> bool:
    """Whether nothing in the graph speaks against the layout."""
    return not any(node.target in READ_BY_PLANE or "as_strided" in node.target for node in graph.nodes)


def suits(graph: Graph) -> bool:
    """Whether the layout is the faster one with weights as they are: a quarter of the convolutions is depthwise, not
    counting those of images of one place (gates of channels)."""
    values = definitions(graph)
    calls = [node for node in graph.nodes if node.target == CONVOLUTION]
    found = [_is_depthwise(node, values) for node in calls if set(node.results[0].type.shape[2:]) != {1}]  # type: ignore[union-attr]
    return bool(found) and 4 * sum(found) >= len(found) and may_turn(graph)


def _is_depthwise(node: Node, values: dict[str, Value]) -> bool:
    x = values[node.args[0].name].type if isinstance(node.args[0], Ref) else None
    plain = isinstance(x, TensorType) and len(x.shape) == 4 and x.device == "cpu" and len(node.args) == 9
    return plain and node.args[6] is False and node.args[8] == x.shape[1] != 1  # type: ignore[union-attr]


def channels_last(graph: Graph, convolutions: frozenset[str] = frozenset((CONVOLUTION,))) -> Graph:
    """The graph with other strides for what `convolutions` give, and for what follows them up to the outputs."""
    outputs = {name for arg in graph.outputs for name in references(arg)}
    turned: set[str] = set()
    nodes = tuple(_turned(node, turned, outputs, convolutions) for node in graph.nodes)
    return msgspec.structs.replace(graph, nodes=nodes)


def _turned(node: Node, turned: set[str], outputs: set[str], convolutions: frozenset[str]) -> Node:
    follows = node.target in FOLLOWS and turned.intersection(node_references(node))
    if node.target not in convolutions and not follows:
        return node
    results = tuple(_value(value, outputs) for value in node.results)
    turned.update(new.name for new, old in zip(results, node.results, strict=True) if new is not old)
    return msgspec.structs.replace(node, results=results)


def _value(value: Value, outputs: set[str]) -> Value:
    type = value.type
    if value.name in outputs or not isinstance(type, TensorType) or len(type.shape) != 4 or 0 in type.shape:
        return value
    turned = msgspec.structs.replace(type, stride=channels_last_stride(type.shape))
    return msgspec.structs.replace(value, type=turned)
