"""Operands of backward products so large that a pass over memory is worth what they take."""

from __future__ import annotations

from aotgrad.joint import Joint
from aotgrad.partition.needs import Needs, Sizes
from aotgrad.partition.policy import Policy
from stagewire.graph import references
from stagewire.types import TensorType, ValueType

__all__ = ["large_operands"]


def large_operands(
    joint: Joint, needs: Needs, policy: Policy, saved: list[str], part: float, least: int
) -> frozenset[str]:
    """Saved values of a GPU that pointwise ops make, of `least` bytes and `part` of what is saved, or more, and twice
    that part together at most: the first images of a network, which later ones are small beside.

    To compute them again takes a pass over memory, which is short in a step that makes so much else. Where few values
    are saved, each is a larger part, and none is named.
    """
    sizes = Sizes.of(joint)
    types: dict[str, ValueType] = {value.name: value.type for value in joint.primal_values}
    types |= {value.name: value.type for node in needs.producers.values() for value in node.results}
    size = {name: sizes.bytes(types[name]) for name in saved}
    least = max(least, int(part * sum(size.values())))
    most = 2 * part * sum(size.values())
    results = {name for arg in joint.result_refs for name in references(arg)}
    found: list[str] = []
    for name in sorted(size, key=lambda name: -size[name]):
        kind, node = types[name], needs.producers.get(name)
        if size[name] < least or node is None or name in results or policy.element_cost(node) is None:
            continue
        is_on_gpu = isinstance(kind, TensorType) and kind.device.startswith("cuda")
        if is_on_gpu and sum(size[one] for one in (*found, name)) <= most:
            found.append(name)
    return frozenset(found)
