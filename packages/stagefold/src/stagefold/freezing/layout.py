"""Whether a frozen program's convolutions are to be packed, in channels-last layout."""

from __future__ import annotations

from primops.channels_last import may_turn
from stagewire.graph import Graph, Ref
from stagewire.types import TensorType, numel

LEAST_ELEMENTS = 1 << 16
"""Elements of input, weight and result of a convolution, on average, from which on packing gains more than calls cost
(a MobileNet at batch 1 has 40,000: 0.65 of the speed; at batch 8 eight times as many: 1.7 times)."""


def suits(graph: Graph) -> bool:
    """Whether packed convolutions in channels-last layout are the faster ones for a program."""
    types = {v.name: v.type for v in (*graph.inputs, *(v for node in graph.nodes for v in node.results))}
    sizes = []
    for node in graph.nodes:
        if node.target == "aten.convolution.default":
            tensors = [types[arg.name] for arg in node.args[:2] if isinstance(arg, Ref)]
            tensors += [value.type for value in node.results]
            sizes.append(sum(numel(type.shape) for type in tensors if isinstance(type, TensorType)))
    return bool(sizes) and sum(sizes) >= LEAST_ELEMENTS * len(sizes) and may_turn(graph)
