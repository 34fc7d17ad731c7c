"""Whether a frozen program's convolutions are to be packed, in channels-last layout."""

from __future__ import annotations

from primops.channels_last import CONVOLUTION, may_turn
from stagewire.graph import Graph, Ref, definitions
from stagewire.types import TensorType, numel

LEAST_ELEMENTS = 1 << 16
"""Elements of input, weight and result of a convolution, on average, from which on packing gains more than calls cost
(a MobileNet at batch 1 has 40,000: 0.65 of the speed; at batch 8 eight times as many: 1.7 times)."""


def suits(graph: Graph) -> bool:
    """Whether packed convolutions in channels-last layout are the faster ones for a program."""
    values = definitions(graph)
    sizes = []
    for node in graph.nodes:
        if node.target == CONVOLUTION:
            tensors = [*(values[arg.name] for arg in node.args[:2] if isinstance(arg, Ref)), *node.results]
            sizes.append(sum(numel(value.type.shape) for value in tensors if isinstance(value.type, TensorType)))
    return bool(sizes) and sum(sizes) >= LEAST_ELEMENTS * len(sizes) and may_turn(graph)
