"""What a partitioner asks about a joint graph."""

from __future__ import annotations

import msgspec

from aotgrad.joint import Joint
from stagewire.expr import Dim
from stagewire.graph import Node, node_references, references
from stagewire.types import ITEM_SIZE, TensorType, ValueType, numel

__all__ = ["Needs", "byte_size", "needs_of", "operands"]


class Needs(msgspec.Struct, frozen=True, eq=False):
    """The seam between the phases.

    producers: for each forward value the node that makes it (inputs have none).
    direct: forward values and inputs that backward nodes or gradients use, in order of first use.
    consumers: for each of them, the backward nodes that use it.
    mutated: names of inputs that the program writes.
    """

    producers: dict[str, Node]
    direct: tuple[str, ...]
    consumers: dict[str, tuple[Node, ...]]
    mutated: frozenset[str]


def needs_of(joint: Joint) -> Needs:
    """Look at the seam."""
    producers: dict[str, Node] = {}
    own: set[str] = {value.name for value in joint.tangent_values}
    consumers: dict[str, list[Node]] = {}
    for node in joint.graph.nodes:
        if node.phase == "forward":
            for value in node.results:
                producers[value.name] = node
            continue
        for name in node_references(node):
            if name not in own:
                consumers.setdefault(name, []).append(node)
        own.update(value.name for value in node.results)
    for arg in joint.gradient_refs:
        for name in references(arg):
            if name not in own:
                consumers.setdefault(name, [])
    mutated = frozenset(given.name for given in joint.binding.inputs if given.mutated)
    used = {name: tuple(nodes) for name, nodes in consumers.items()}
    return Needs(producers, tuple(used), used, mutated)


def byte_size(kind: ValueType) -> Dim:
    """Bytes of a tensor's elements; 0 for anything else."""
    return numel(kind.shape) * ITEM_SIZE[kind.dtype] if isinstance(kind, TensorType) else 0


def operands(node: Node) -> tuple[str, ...]:
    """The values a node uses, each once."""
    return tuple(dict.fromkeys(node_references(node)))
