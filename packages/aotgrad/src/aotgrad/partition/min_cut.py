"""Save what is cheapest to save or compute again: a minimum cut.

Each forward value is an edge "in -> out" of its size in bytes; whoever cuts it saves the value. From the source flows
what cannot be computed again, or what it costs to compute it again; the sink is what the backward uses. A value on the
sink side that is not cut is computed again there, so its operands stand on the sink side too (uncuttable edges). Views
cost nothing and are never saved, their bases are. Inputs are at hand for nothing, except those that the program
overwrites.
"""

from __future__ import annotations

import msgspec

from aotgrad.joint import Joint
from aotgrad.operands import operands
from aotgrad.partition.flow import INFINITE, FlowNetwork
from aotgrad.partition.needs import Needs, Sizes, needs_of
from aotgrad.partition.policy import Policy
from aotgrad.partition.reach import held_back
from aotgrad.partition.split import Partition

__all__ = ["CutNetwork", "MinCut", "cut_network"]

SOURCE, SINK = 0, 1
# A saved byte is written once and read once; costs count in quarters of a byte moved.
_SAVED_BYTE = 8


class MinCut(msgspec.Struct, frozen=True):
    """The default partitioner.

    policy: what it costs to compute an op again.
    save_operands: save a value that a backward op which is not fused (a matmul) reads, since it would have to be
    written to memory there anyway.
    longest_life: save a value that, computed again, would have to be kept across more than so many ops that are not
    fused (a residual stream, rebuilt at the start of the backward and needed at its end).
    """

    policy: Policy = Policy()
    save_operands: bool = True
    longest_life: int = 3

    def __call__(self, joint: Joint) -> Partition:
        needs = needs_of(joint)
        network = cut_network(joint, needs, self)
        flow = FlowNetwork(network.vertices)
        for tail, head, capacity in network.edges:
            flow.add_edge(tail, head, capacity)
        flow.maximum_flow(SOURCE, SINK)
        near_sink = flow.sink_side(SINK)
        saved = [
            name for at, name in enumerate(network.names, 1) if near_sink[2 * at + 1] and not near_sink[2 * at]
        ]  # fmt: skip
        return Partition((*saved, *_inputs(needs, saved, joint)))


class CutNetwork(msgspec.Struct, frozen=True, eq=False):
    """Vertex 0 is the source and 1 the sink; value number `i` of `names` is the edge from 2i + 2 to 2i + 3."""

    names: tuple[str, ...]
    edges: list[tuple[int, int, int]]

    @property
    def vertices(self) -> int:
        """How many vertices."""
        return 2 * len(self.names) + 2


def cut_network(joint: Joint, needs: Needs, options: MinCut) -> CutNetwork:
    """The flow network over the forward values from which the backward may be computed."""
    policy, sizes = options.policy, Sizes.of(joint)
    inputs = {value.name: value.type for value in joint.primal_values}
    kept = held_back(needs, policy, options.longest_life, options.save_operands)
    index: dict[str, int] = {}
    edges: list[tuple[int, int, int]] = []

    def vertex(name: str) -> int:
        """The number of the value's "in"; a value met for the first time is looked at later."""
        number = index.get(name)
        if number is None:
            number = index[name] = 2 * len(index) + 2
            pending.append(name)
        return number

    pending: list[str] = []
    for name in needs.direct:
        if _takes_part(name, needs):
            edges.append((vertex(name) + 1, SINK, INFINITE))
    while pending:
        name = pending.pop()
        at, node = index[name], needs.producers.get(name)
        if node is None:
            edges += (at, at + 1, sizes.bytes(inputs[name]) * _SAVED_BYTE), (SOURCE, at, INFINITE)
            continue
        kind = next(value.type for value in node.results if value.name == name)
        free = policy.is_free(node)
        edges.append((at, at + 1, INFINITE if free else sizes.bytes(kind) * _SAVED_BYTE))
        cost = None if name in kept else policy.element_cost(node)
        if cost is None:
            edges.append((SOURCE, at, INFINITE))
            continue
        if cost:
            edges.append((SOURCE, at, cost * sizes.elements(kind)))
        edges += [(vertex(operand) + 1, at, INFINITE) for operand in operands(node) if _takes_part(operand, needs)]
    return CutNetwork(tuple(index), edges)


def _takes_part(name: str, needs: Needs) -> bool:
    """Inputs that stay as they are cost nothing and hold nothing up."""
    return name in needs.producers or name in needs.mutated


def _inputs(needs: Needs, saved: list[str], joint: Joint) -> tuple[str, ...]:
    """Inputs from which the backward starts, given what is saved."""
    found: set[str] = set()
    pending = list(needs.direct)
    seen = set(saved)
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        node = needs.producers.get(name)
        if node is None:
            found.add(name)
        else:
            pending.extend(operands(node))
    return tuple(value.name for value in joint.primal_values if value.name in found)
