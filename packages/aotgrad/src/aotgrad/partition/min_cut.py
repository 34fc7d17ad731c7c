"""Save what is cheapest to save or compute again: a minimum cut.

Each forward value is an edge "in -> out" of its size in bytes; whoever cuts it saves the value. From the source flows
what cannot be computed again, or what it costs to compute it again; the sink is what the backward uses. A value on the
sink side that is not cut is computed again there, so its operands stand on the sink side too (uncuttable edges). Views
cost nothing and are never saved, their bases are; nor is a value saved in a wider dtype than it was computed in. Inputs
are at hand for nothing, except those that the program overwrites. A copy that the program makes of an input is saved
itself: whoever makes one (of a queue, a memory) may write into the input before the backward runs.

Under a memory budget every op may be computed again, but for random ones, at what it costs; and a saved byte is made
dearer until the cut keeps to the budget. Where values are few and far between (a residual stream) they are then what is
saved, and what lies between them is computed again: checkpoints, found by the cut.
"""

from __future__ import annotations

import msgspec

from aotgrad.joint import Joint
from aotgrad.partition.flow import INFINITE, FlowNetwork
from aotgrad.partition.needs import Needs, Sizes, needs_of
from aotgrad.partition.policy import Costs, Policy
from aotgrad.partition.recompute_bans import (
    checkpointed_values,
    copies_of_inputs,
    is_fused,
    large_operands,
    recompute_bans,
)
from aotgrad.partition.schedule import peak_backward_bytes
from aotgrad.partition.split import Partition
from stagewire.graph import Node, definitions, references
from stagewire.graph_passes import operands
from stagewire.types import ValueType

SOURCE, SINK = 0, 1
# A saved byte is written once and read once; costs count in quarters of a byte moved.
_SAVED_BYTE = 8
# What a product writes is in memory anyway. It is as large when it is saved, so that this decides between values of
# about the same size: the logits are saved, say, not their logarithms of softmax.
_WRITTEN_BYTE = 7
# A result of the program is written, and held by whoever called it, in any case: what it takes is to read it, which is
# less than an exponential (a softmax is read, not computed again from its operand).
_RESULT_BYTE = 4
# How much dearer a byte is that the program's own checkpoint says not to keep.
_CHECKPOINTED = 1024


class MinCut(msgspec.Struct, frozen=True):
    """The default partitioner.

    policy: what it costs to compute an op again.
    save_operands: ban recomputing what an unfused backward op (a matmul) reads: it would be written to memory there.
    longest_life: unfused ops; ban recomputing a value that would then be alive across more of them (a residual stream,
        rebuilt at the start of the backward and needed at its end).
    large_operand: fraction of the saved bytes from which the ban of an operand is lifted on a GPU (`large_operands`).
    least_large: bytes; the same.
    memory_budget: fraction (0 to 1) of the bytes saved without a budget that may be saved. No less is saved than makes
        the peak of the step smaller: a backward that starts with the whole forward holds all of it.
    """

    policy: Policy = Policy()
    save_operands: bool = True
    longest_life: int = 3
    large_operand: float = 1 / 16
    least_large: int = 8 << 20
    memory_budget: float = 1.0

    def __call__(self, joint: Joint) -> Partition:
        needs = needs_of(joint)
        saved = _cheapest(cut_network(joint, needs, self))
        if self.memory_budget < 1:
            saved = self._within_budget(joint, needs, saved)
        elif large := large_operands(joint, needs, self.policy, saved, self.large_operand, self.least_large):
            saved = _cheapest(cut_network(joint, needs, self, released=large))
        return Partition((*saved, *_inputs(needs, saved, joint)))

    def _within_budget(self, joint: Joint, needs: Needs, saved: list[str]) -> list[str]:
        """The cheapest cut for the lowest price of a byte at which it keeps to the budget, or what comes nearest."""
        sizes, values = Sizes.of(joint), definitions(joint.graph)

        def size(names: list[str]) -> int:
            return sum(sizes.bytes(values[name].type) for name in names)

        limit = int(size(saved) * self.memory_budget)
        if size(saved) <= limit:
            return saved
        network = cut_network(joint, needs, self, costs=Costs(values, sizes, self.policy))
        low, high = 0, 2
        while size(saved := _cheapest(network, 2**high)) > limit and high < _HIGHEST_PRICE:
            low, high = high, high + 4
        while high - low > 1:
            middle = (low + high) // 2
            found = _cheapest(network, 2**middle)
            low, high, saved = (low, middle, found) if size(found) <= limit else (middle, high, saved)
        return self._of_lowest_peak(joint, needs, sizes, network, saved, high)

    def _of_lowest_peak(
        self, joint: Joint, needs: Needs, sizes: Sizes, network: CutNetwork, saved: list[str], high: int
    ) -> list[str]:
        """`saved`, or what is saved at a lower price of a byte if the backward then holds less at its worst moment.

        Where next to nothing is saved, the backward starts with the whole forward, whose values wait for their turn.
        """

        def peak(names: list[str]) -> int:
            return peak_backward_bytes(joint, needs, sizes, (*names, *_inputs(needs, names, joint)))

        best, least = saved, peak(saved)
        for exponent in range(high - 1, -1, -1):
            found = _cheapest(network, 2**exponent)
            if found != best and (now := peak(found)) < least:
                best, least = found, now
        return best


# Sixteenfold this often: by then a byte is dearer than any computation.
_HIGHEST_PRICE = 34


def _cheapest(network: CutNetwork, price: int = 1) -> list[str]:
    """The values that a minimum cut saves, when a saved byte is `price` times as dear."""
    flow = FlowNetwork(network.vertices)
    for tail, head, capacity in network.edges:
        saves = tail ^ 1 == head and tail > SINK
        flow.add_edge(tail, head, capacity * price if saves and capacity < INFINITE else capacity)
    flow.maximum_flow(SOURCE, SINK)
    near_sink = flow.sink_side(SINK)
    return [name for at, name in enumerate(network.names, 1) if near_sink[2 * at + 1] and not near_sink[2 * at]]


class CutNetwork(msgspec.Struct, frozen=True, eq=False):
    """Vertex 0 is the source and 1 the sink; value number `i` of `names` is the edge from 2i + 2 to 2i + 3."""

    names: tuple[str, ...]
    edges: list[tuple[int, int, int]]

    @property
    def vertices(self) -> int:
        """How many vertices."""
        return 2 * len(self.names) + 2


def cut_network(
    joint: Joint, needs: Needs, options: MinCut, costs: Costs | None = None, released: frozenset[str] = frozenset()
) -> CutNetwork:
    """The flow network over the forward values from which the backward may be computed.

    costs: what it costs to compute a value again that should not be; without them nothing is held to be that dear.
    released: operands that may be computed again although a backward op that is not fused reads them.
    """
    policy, sizes = options.policy, Sizes.of(joint)
    inner = checkpointed_values(joint)
    true_costs = Costs(definitions(joint.graph), sizes, policy) if inner else None
    inputs = {value.name: value.type for value in joint.primal_values}
    types = inputs | {value.name: value.type for node in needs.producers.values() for value in node.results}
    size = lambda name: sizes.bytes(types[name])  # noqa: E731
    kept: frozenset[str] = frozenset()
    if costs is None:
        kept = recompute_bans(needs, policy, options.longest_life, options.save_operands, size, released)
    kept = (kept - inner) | copies_of_inputs(joint)
    results = {name for arg in joint.result_refs for name in references(arg)}
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
        free = policy.is_free(node) or name in needs.widened
        is_inner = name in inner
        cost = _cost(node, kind, policy, sizes, true_costs if is_inner else costs) if name not in kept else None
        price = _RESULT_BYTE if name in results else _SAVED_BYTE if is_fused(node, policy) else _WRITTEN_BYTE
        price *= _CHECKPOINTED if is_inner and cost is not None else 1
        edges.append((at, at + 1, INFINITE if free else sizes.bytes(kind) * price))
        if cost is None:
            edges.append((SOURCE, at, INFINITE))
            continue
        if cost:
            edges.append((SOURCE, at, cost))
        edges += [(vertex(operand) + 1, at, INFINITE) for operand in operands(node) if _takes_part(operand, needs)]
    return CutNetwork(tuple(index), edges)


def _cost(node: Node, kind: ValueType, policy: Policy, sizes: Sizes, costs: Costs | None) -> int | None:
    each = policy.element_cost(node)
    if each is not None:
        return each * sizes.elements(kind)
    return None if costs is None else costs.of(node)


def _takes_part(name: str, needs: Needs) -> bool:
    """Inputs that stay as they are cost nothing and hold nothing up."""
    return name in needs.producers or name in needs.mutated


def _inputs(needs: Needs, saved: list[str], joint: Joint) -> tuple[str, ...]:
    """Inputs from which the backward starts, given what is saved."""
    found = {name for name, node in needs.sources(needs.direct, saved) if node is None}
    return tuple(value.name for value in joint.primal_values if value.name in found)
