"""Save the fewest bytes from which the backward can be computed: a minimum cut.

Each forward value is an edge of its size in bytes; whoever cuts it saves the value. From the source flows what
cannot be computed again; the sink is what the backward uses. A value on the sink side that is not cut is computed
again there, so its operands stand on the sink side too (uncuttable edges). Views cost nothing and are never saved,
their bases are. Inputs are at hand for nothing, except those that the program overwrites.
"""

from __future__ import annotations

import msgspec

from aotgrad.joint import Joint
from aotgrad.partition.flow import INFINITE, FlowNetwork
from aotgrad.partition.needs import Needs, byte_size, needs_of, operands
from aotgrad.partition.policy import Policy
from aotgrad.partition.split import Partition
from stagewire.graph import Node

__all__ = ["Edge", "MinCut", "cut_edges"]


class Edge(msgspec.Struct, frozen=True):
    """An edge of the flow network between named vertices; "source" and "sink" are its ends."""

    tail: str
    head: str
    capacity: int


class MinCut(msgspec.Struct, frozen=True):
    """The default partitioner.

    policy: which ops may be computed again.
    save_operands: save a value that a backward op which is not fused (a matmul) reads, since it would have to be
    written to memory there anyway.
    """

    policy: Policy = Policy()
    save_operands: bool = True

    def __call__(self, joint: Joint) -> Partition:
        needs = needs_of(joint)
        vertices = {"source": 0, "sink": 1}
        edges = cut_edges(joint, needs, self)
        for edge in edges:
            vertices.setdefault(edge.tail, len(vertices))
            vertices.setdefault(edge.head, len(vertices))
        network = FlowNetwork(len(vertices))
        for edge in edges:
            network.add_edge(vertices[edge.tail], vertices[edge.head], edge.capacity)
        network.maximum_flow(0, 1)
        near_sink = network.sink_side(1)
        saved = [
            edge.tail.removesuffix(" in")
            for edge in edges
            if edge.tail.endswith(" in") and not near_sink[vertices[edge.tail]] and near_sink[vertices[edge.head]]
        ]
        return Partition((*saved, *_inputs(needs, saved, joint)))


def cut_edges(joint: Joint, needs: Needs, options: MinCut) -> list[Edge]:
    """The flow network over the forward values from which the backward may be computed."""
    policy = options.policy
    types = {value.name: value.type for value in joint.primal_values}
    edges = [Edge(f"{name} out", "sink", INFINITE) for name in needs.direct if _takes_part(name, needs)]
    pinned = _pinned(needs, policy) if options.save_operands else frozenset()
    pending = list(needs.direct)
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen or not _takes_part(name, needs):
            continue
        seen.add(name)
        node = needs.producers.get(name)
        if node is None:
            edges.append(Edge(f"{name} in", f"{name} out", byte_size(types[name])))
            edges.append(Edge("source", f"{name} in", INFINITE))
            continue
        free = policy.is_free(node)
        edges.append(Edge(f"{name} in", f"{name} out", INFINITE if free else _bytes(node, name)))
        if name in pinned or not policy.may_recompute(node):
            edges.append(Edge("source", f"{name} in", INFINITE))
            continue
        for operand in operands(node):
            if _takes_part(operand, needs):
                edges.append(Edge(f"{operand} out", f"{name} in", INFINITE))
                pending.append(operand)
    return edges


def _takes_part(name: str, needs: Needs) -> bool:
    """Inputs that stay as they are cost nothing and hold nothing up."""
    return name in needs.producers or name in needs.mutated


def _bytes(node: Node, name: str) -> int:
    size = byte_size(next(value.type for value in node.results if value.name == name))
    return size if isinstance(size, int) else INFINITE >> 20


def _pinned(needs: Needs, policy: Policy) -> frozenset[str]:
    """Values (seen through views) that backward ops read which are not pointwise themselves."""
    pinned: set[str] = set()
    for name, consumers in needs.consumers.items():
        if any(not policy.may_recompute(node) and not _is_backward_pointwise(node) for node in consumers):
            while (node := needs.producers.get(name)) is not None and policy.is_free(node):
                name = operands(node)[0]
            if name in needs.producers and not _is_filling(needs.producers[name]):
                pinned.add(name)
    return frozenset(pinned)


_POINTWISE_BACKWARD = frozenset(
    ("aten.gelu_backward", "aten.threshold_backward", "aten.tanh_backward", "aten.sigmoid_backward",
     "aten.silu_backward", "aten.elu_backward", "aten.hardtanh_backward", "aten.hardswish_backward",
     "aten.leaky_relu_backward", "aten.native_dropout_backward", "aten.sum", "aten.mean")
)  # fmt: skip


def _is_backward_pointwise(node: Node) -> bool:
    return node.target.rpartition(".")[0] in _POINTWISE_BACKWARD


def _is_filling(node: Node) -> bool:
    return not operands(node)


def _inputs(needs: Needs, saved: list[str], joint: Joint) -> tuple[str, ...]:
    """Inputs from which the backward starts, given what is saved."""
    found: dict[str, None] = {}
    pending = list(needs.direct)
    seen = set(saved)
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        node = needs.producers.get(name)
        if node is None:
            found[name] = None
        else:
            pending.extend(operands(node))
    order = [value.name for value in joint.primal_values]
    return tuple(sorted(found, key=order.index))
