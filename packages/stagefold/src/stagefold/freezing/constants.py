"""Which values of a program depend on weights alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aotgrad.ops import is_pure
from stagewire.grad import Grad
from stagewire.graph import Graph, Node, Ref, node_references, references
from stagewire.graph_passes import live_nodes
from stagewire.types import TensorType

FROZEN_ROLES = frozenset(("parameter", "buffer"))


def frozen_inputs(grad: Grad) -> dict[str, int]:
    """Names of the graph's inputs that are weights (parameters and buffers that the program does not write), and
    their places."""
    names = [value.name for value in grad.joint.inputs]
    return {
        names[place]: place
        for place, given in enumerate(grad.binding.inputs)
        if given.role in FROZEN_ROLES and not given.mutated and not given.fixed_offset
    }


def constant_nodes(grad: Grad) -> list[Node]:
    """The nodes that depend on weights (and on constants of the program) alone, in order."""
    weights = set(frozen_inputs(grad))
    first = len(grad.binding.inputs)
    fixed = {value.name for value in grad.joint.inputs[first:]}
    outputs = {name for arg in grad.joint.outputs for name in references(arg)}
    found = []
    for node in grad.joint.nodes:
        names = set(node_references(node))
        results = [value.name for value in node.results if value.name]
        is_fixed = names <= weights | fixed and is_pure(node) and _makes_tensors(node)
        if is_fixed and outputs.isdisjoint(results):
            (weights if names & weights else fixed).update(results)
            found.append(node)
    return needed(found, [value.name for node in found for value in node.results if value.name in weights])


def needed(nodes: Iterable[Node], names: Iterable[str]) -> list[Node]:
    """Those of the (pure) nodes that the named values need, in order."""
    return list(live_nodes(Graph((), tuple(nodes), tuple(Ref(name) for name in names))))


def _makes_tensors(node: Node) -> bool:
    return all(isinstance(value.type, TensorType) for value in node.results if value.name)


def users(nodes: Iterable[Node]) -> Mapping[str, list[Node]]:
    """The nodes that use each value."""
    found: dict[str, list[Node]] = {}
    for node in nodes:
        for name in dict.fromkeys(node_references(node)):
            found.setdefault(name, []).append(node)
    return found
