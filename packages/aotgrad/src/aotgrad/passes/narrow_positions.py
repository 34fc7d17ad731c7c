"""Keep positions of maxima for the backward in as few bytes as they need."""

from __future__ import annotations

from math import prod

import msgspec
from msgspec.structs import replace

from aotgrad.joint import Joint
from stagewire.graph import DTypeArg, Graph, Node, Ref, Value, definitions, node_references, references
from stagewire.graph_passes import rename_node
from stagewire.types import DType, TensorType

# Calls whose second result counts positions in a plane of the operand, and how many dimensions a plane has.
_PLANES = {
    "aten.max_pool2d_with_indices.default": 2,
    "aten.max_pool3d_with_indices.default": 3,
    "aten.adaptive_max_pool2d.default": 2,
    "aten.adaptive_max_pool3d.default": 3,
}
_WIDTHS: tuple[tuple[int, DType], ...] = ((1 << 15, "int16"), (1 << 31, "int32"))


class NarrowPositions(msgspec.Struct, frozen=True):
    """After it, positions of max pooling that only the backward uses, on a GPU, go there as int16 or int32.

    ATen gives and takes them as int64: a quarter of the bytes of a ResNet's first stage would be these.
    """

    def __call__(self, joint: Joint) -> Joint:
        narrow = _narrow(joint)
        if not narrow:
            return joint
        nodes: list[Node] = []
        names: dict[str, str] = {}
        for node in joint.graph.nodes:
            used = [name for name in node_references(node) if name in narrow and name not in names]
            for name in used:
                names[name] = f"{name}_wide"
                nodes.append(_converted(narrow[name], names[name], "int64", node))
            nodes.append(rename_node(node, names) if node.phase == "backward" else node)
            nodes += [
                _converted(value, narrow[value.name].name, narrow[value.name].type.dtype, node)  # type: ignore[union-attr]
                for value in node.results
                if value.name in narrow
            ]
        return joint.with_graph(Graph(joint.graph.inputs, tuple(nodes), joint.graph.outputs))


def _narrow(joint: Joint) -> dict[str, Value]:
    """The narrow form of each value that is to have one."""
    values = definitions(joint.graph)
    found: dict[str, Value] = {}
    for node in joint.graph.nodes:
        planes = _PLANES.get(node.target)
        if planes is None or node.phase != "forward" or not isinstance(node.args[0], Ref) or len(node.results) < 2:
            continue
        kind, positions = values[node.args[0].name].type, node.results[1]
        if not isinstance(kind, TensorType) or not isinstance(positions.type, TensorType):
            continue
        sides = kind.shape[-planes:]
        if not kind.device.startswith("cuda") or not all(isinstance(side, int) for side in sides):
            continue
        size = prod(side for side in sides if isinstance(side, int))
        dtype = next((dtype for limit, dtype in _WIDTHS if size <= limit), None)
        if dtype is not None:
            found[positions.name] = Value(f"{positions.name}_narrow", replace(positions.type, dtype=dtype))
    seen = {name for arg in joint.graph.outputs for name in references(arg)}
    used: set[str] = set()
    for node in joint.graph.nodes:
        (seen if node.phase == "forward" else used).update(node_references(node))
    return {name: value for name, value in found.items() if name in used - seen}


def _converted(value: Value, name: str, dtype: DType, beside: Node) -> Node:
    assert isinstance(value.type, TensorType)
    made = Value(name, replace(value.type, dtype=dtype))
    return Node(
        "aten._to_copy.default", (Ref(value.name),), {"dtype": DTypeArg(dtype)}, (made,),
        phase=beside.phase, checkpoint=beside.checkpoint,
    )  # fmt: skip
