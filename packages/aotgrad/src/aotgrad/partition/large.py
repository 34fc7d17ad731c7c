"""Operands of backward products so large that a pass over memory is worth what they take."""

from __future__ import annotations

from aotgrad.joint import Joint
from aotgrad.partition.needs import Needs, Sizes
from aotgrad.partition.policy import Policy
from stagewire.graph import references
from stagewire.graph_passes import operands
from stagewire.types import TensorType, ValueType

__all__ = ["large_operands"]


def large_operands(
    joint: Joint, needs: Needs, policy: Policy, saved: list[str], part: float, least: int
) -> frozenset[str]:
    """Saved values of a GPU that pointwise ops make of others, of `least` bytes and `part` of what is saved, or more,
    and twice that part together at most: the first images of a network, which later ones are small beside.

    To compute them again takes a pass over memory, which is short in a step that makes so much else. Where few values
    are saved, each is a larger part, and none is named; nor is one that the backward would begin with.
    """
    sizes = Sizes.of(joint)
    types: dict[str, ValueType] = {value.name: value.type for value in joint.primal_values}
    types |= {value.name: value.type for node in needs.producers.values() for value in node.results}
    size = {name: sizes.bytes(types[name]) for name in saved}
    uses = {name: positions for name in saved if (positions := needs.consumers.get(name))}
    total = sum(size.values())

    def is_large(name: str) -> bool:
        kind = types[name]
        is_on_gpu = isinstance(kind, TensorType) and kind.device.startswith("cuda")
        return is_on_gpu and size[name] >= max(least, part * total)

    def is_made_of_saved(name: str) -> bool:
        pending, seen = [name], {name}
        while pending:
            node = needs.producers.get(pending.pop())
            if node is None or policy.element_cost(node) is None:
                return False
            fresh = [one for one in operands(node) if one not in seen and one not in size]
            seen.update(fresh)
            pending += [one for one in fresh if one in needs.producers or one in needs.mutated]
        return True

    def comes_late(name: str) -> bool:
        """Whether as much is let go of before the backward uses it first."""
        gone = sum(size[other] for other, positions in uses.items() if positions[-1] < uses[name][0])
        return gone >= size[name]

    results = {name for arg in joint.result_refs for name in references(arg)}
    found: list[str] = []
    for name in sorted(uses.keys() - results, key=lambda name: (-size[name], name)):
        if is_large(name) and is_made_of_saved(name) and comes_late(name):
            together = sum(size[one] for one in (*found, name))
            found += [name] if together <= 2 * part * total else []
    return frozenset(found)
