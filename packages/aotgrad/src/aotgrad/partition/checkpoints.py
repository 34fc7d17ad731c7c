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
    forward = [node for node in joint.graph.nodes if node.phase == "forward"]
    places = {value.name: node.checkpoint for node in forward for value in node.results if node.checkpoint is not None}
    if not places:
        return frozenset()
    leaving = {name for output in joint.result_refs for name in references(output)}
    for node in forward:
        leaving.update(name for name in operands(node) if places.get(name, node.checkpoint) != node.checkpoint)
    return frozenset(places).difference(leaving)
