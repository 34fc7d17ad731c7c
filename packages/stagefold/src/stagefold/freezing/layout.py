"""Channels last through the convolutions of a frozen program: the layout in which oneDNN reads and writes them."""

from __future__ import annotations

import msgspec

from stagefold.freezing.fold import PACKED
from stagewire.grad import Grad
from stagewire.graph import Node, Ref, Value, node_references, references
from stagewire.types import TensorType, numel

FOLLOWS = frozenset(
    """
    aten.add.Tensor aten.add.Scalar aten.sub.Tensor aten.mul.Tensor aten.mul.Scalar aten.div.Tensor aten.relu.default
    aten.silu.default aten.hardswish.default aten.hardtanh.default aten.hardsigmoid.default aten.sigmoid.default
    aten.tanh.default aten.gelu.default aten.elu.default aten.leaky_relu.default aten.clamp.default aten.clone.default
    aten.native_batch_norm.default aten._native_batch_norm_legit_no_training.default aten.convolution.default
    aten.max_pool2d_with_indices.default aten.avg_pool2d.default aten.cat.default aten.constant_pad_nd.default
    aten.upsample_nearest2d.default aten.upsample_nearest2d.vec aten.upsample_bilinear2d.default
    aten.upsample_bilinear2d.vec
    """.split()  # noqa: SIM905
)
"""Calls whose result takes the layout of its operands."""


READ_BY_PLANE = frozenset(("aten.native_group_norm.default", "aten.instance_norm.default"))
"""Calls that sum over planes: with channels last they lose more than packed convolutions gain (a UNet with group norms
runs at 0.65 of the speed that it has without)."""


LEAST_ELEMENTS = 1 << 16
"""Elements of input, weight and result of a convolution, on average, from which on packing gains more than calls cost
(a MobileNet at batch 1 has 40,000: 0.65 of the speed; at batch 8 eight times as many: 1.7 times)."""


def suits(grad: Grad) -> bool:
    """Whether packed convolutions in channels-last layout are the faster ones for a program."""
    if any(node.target in READ_BY_PLANE or "as_strided" in node.target for node in grad.forward.nodes):
        return False
    types = {v.name: v.type for v in (*grad.forward.inputs, *(v for n in grad.forward.nodes for v in n.results))}
    sizes = []
    for node in grad.forward.nodes:
        if node.target == "aten.convolution.default":
            tensors = [types[arg.name] for arg in node.args[:2] if isinstance(arg, Ref)]
            tensors += [value.type for value in node.results]
            sizes.append(sum(numel(type.shape) for type in tensors if isinstance(type, TensorType)))
    return bool(sizes) and sum(sizes) >= LEAST_ELEMENTS * len(sizes)


def channels_last(grad: Grad) -> Grad:
    """The program with other strides for what convolutions give, and for what follows them up to the outputs.

    Strides of values inside of a program are free, but for calls that address memory (see `suits`).
    """
    outputs = {name for arg in grad.forward.outputs for name in references(arg)}
    turned: set[str] = set()
    nodes = tuple(_turned(node, turned, outputs) for node in grad.forward.nodes)
    return msgspec.structs.replace(grad, forward=msgspec.structs.replace(grad.forward, nodes=nodes))


def _turned(node: Node, turned: set[str], outputs: set[str]) -> Node:
    follows = node.target in FOLLOWS and turned.intersection(node_references(node))
    if node.target != PACKED and not follows:
        return node
    results = tuple(_value(value, outputs) for value in node.results)
    turned.update(new.name for new, old in zip(results, node.results, strict=True) if new is not old)
    return msgspec.structs.replace(node, results=results)


def _value(value: Value, outputs: set[str]) -> Value:
    type = value.type
    if value.name in outputs or not isinstance(type, TensorType) or len(type.shape) != 4 or 0 in type.shape:
        return value
    _, channels, height, width = type.shape
    stride = (channels * height * width, 1, width * channels, channels)
    return msgspec.structs.replace(value, type=msgspec.structs.replace(type, stride=stride))
