"""How much memory a backward holds at its worst moment, for a choice of what is saved."""

from __future__ import annotations

from aotgrad.joint import Joint
from aotgrad.ops import is_view
from aotgrad.partition.needs import Needs, Sizes
from aotgrad.partition.schedule import backward_nodes
from stagewire.graph import Node, Ref, definitions
from stagewire.graph_passes import operands

__all__ = ["peak_of_backward"]


def peak_of_backward(joint: Joint, needs: Needs, sizes: Sizes, saved: tuple[str, ...]) -> int:
    """Bytes of saved, recomputed and backward values that are alive together at most, node by node.

    An estimate: inputs count nothing, nor do views, which keep what they look at; what fusion leaves out is counted.
    """
    nodes = backward_nodes(joint, needs, frozenset(saved), [])
    given = {value.name for value in joint.primal_values} - needs.mutated
    bytes_of = {name: sizes.bytes(value.type) for name, value in definitions(joint.graph).items()}
    owner = _owners(nodes)
    last = _last_uses(joint, nodes, owner)
    live = sum(bytes_of[name] for name in {*saved, *(v.name for v in joint.tangent_values)} - given)
    peak = live
    for position, node in enumerate(nodes):
        live += sum(bytes_of.get(value.name, 0) for value in node.results if owner.get(value.name) is None)
        peak = max(peak, live)
        dead = {owner.get(name) or name for name in (*operands(node), *(value.name for value in node.results))}
        live -= sum(bytes_of.get(name, 0) for name in dead - given if last.get(name, position) == position)
    return peak


def _owners(nodes: tuple[Node, ...]) -> dict[str, str]:
    """For each view the value whose memory it shows."""
    owner: dict[str, str] = {}
    for node in nodes:
        if is_view(node.target) and (sources := operands(node)):
            owner.update((value.name, owner.get(sources[0], sources[0])) for value in node.results)
    return owner


def _last_uses(joint: Joint, nodes: tuple[Node, ...], owner: dict[str, str]) -> dict[str, int]:
    """The position of the last node that uses a value's memory; gradients are used behind the last."""
    last: dict[str, int] = {}
    for position, node in enumerate(nodes):
        last.update((owner.get(name) or name, position) for name in operands(node))
    ends = (ref.name for ref in joint.gradient_refs if isinstance(ref, Ref))
    last.update((owner.get(name) or name, len(nodes)) for name in ends)
    return last
