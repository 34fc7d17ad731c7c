"""Values inside of `torch.utils.checkpoint`: the program wants them computed again, not kept."""

from __future__ import annotations

from aotgrad.joint import Joint
from stagewire.graph import references
from stagewire.graph_passes import operands

__all__ = ["inside_of_checkpoints"]


def inside_of_checkpoints(joint: Joint) -> frozenset[str]:
    """The values that are made in a checkpoint and that the forward uses nowhere else.

    What leaves a checkpoint may be kept: the next one starts from it.
    """
    places = joint.checkpoints
    if not places:
        return frozenset()
    leaving = {name for output in joint.result_refs for name in references(output)}
    for node in joint.graph.nodes:
        if node.phase == "forward":
            home = {places.get(value.name) for value in node.results}
            leaving.update(name for name in operands(node) if name in places and {places[name]} != home)
    return frozenset(places).difference(leaving)
