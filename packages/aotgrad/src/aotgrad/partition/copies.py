"""Which values are copies of inputs."""

from __future__ import annotations

from aotgrad.joint import Joint
from aotgrad.ops import is_view
from stagewire.graph_passes import operands
from stagewire.types import TensorType, ValueType

__all__ = ["copies_of_inputs"]

_COPIES = frozenset({"aten.clone.default", "prims.clone"})


def copies_of_inputs(joint: Joint) -> frozenset[str]:
    """Forward values that are copies of an input, or of a view of one, in its layout (`contiguous()` makes others)."""
    types: dict[str, ValueType] = {value.name: value.type for value in joint.primal_values}
    inputs, found = set(types), set()
    for node in joint.graph.nodes:
        types |= {value.name: value.type for value in node.results}
        if node.phase != "forward" or not any(name in inputs for name in operands(node)):
            continue
        if is_view(node.target):
            inputs |= {value.name for value in node.results}
        elif node.target in _COPIES and _same_layout(types[operands(node)[0]], node.results[0].type):
            found.add(node.results[0].name)
    return frozenset(found)


def _same_layout(one: ValueType, other: ValueType) -> bool:
    if not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return False
    return (one.shape, one.stride) == (other.shape, other.stride)
