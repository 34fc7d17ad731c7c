"""The program in which written-out attention is one call of a fused kernel, wherever that may be."""

from __future__ import annotations

from msgspec.structs import replace

from absint.gradients import TARGET as GRADIENT
from aotgrad.written_attention import names
from aotgrad.written_attention.choice import Choice
from aotgrad.written_attention.match import Refused, find
from aotgrad.written_attention.multi_head import MULTI_HEAD, without_weights
from aotgrad.written_attention.program import Program
from aotgrad.written_attention.site import Site
from stagewire.capture import Capture, Checkpoint
from stagewire.grad import Rewrite
from stagewire.graph import Graph, Node, node_references

__all__ = ["fuse_attention"]


def fuse_attention(capture: Capture, choice: Choice) -> tuple[Capture, tuple[Rewrite, ...]]:
    """The capture with each written-out attention for which there is a kernel as one call, and what was done or not."""
    targets = {node.target for node in capture.graph.nodes}
    if (
        targets.isdisjoint((*names.SOFTMAX, MULTI_HEAD)) or GRADIENT in targets
    ):  # which may be differentiated, unlike a kernel's
        return capture, ()
    program = Program(capture)
    found: dict[int, tuple[frozenset[int], Node]] = {}
    notes: list[Rewrite] = []
    for index, node in enumerate(program.nodes):
        try:
            fused = without_weights(program, node, choice)
            calls = frozenset((index,))
            if fused is None:
                match = find(program, index)
                if match is None:
                    continue
                calls, fused = match.calls, Site(program, match).call(choice)
        except Refused as why:
            notes.append(Rewrite("attention", str(why), refused=True, line=node.line))
        else:
            found[index] = calls, fused
            notes.append(Rewrite("attention", "by a fused kernel", line=node.line))
    return (_replaced(program, found) if found else capture), tuple(notes)


def _replaced(program: Program, found: dict[int, tuple[frozenset[int], Node]]) -> Capture:
    """The capture with the calls in their places, without those that they stand for."""
    gone = frozenset[int]().union(*(calls for calls, _ in found.values()))
    lost: set[str] = set()
    nodes: list[Node] = []
    places: list[int] = []
    for index, node in enumerate(program.nodes):
        places.append(len(nodes))
        if index in found:
            nodes.append(found[index][1])
        elif index in gone or not lost.isdisjoint(node_references(node)):
            lost.update(value.name for value in node.results)
        else:
            nodes.append(node)
    places.append(len(nodes))
    capture = program.capture
    graph = Graph(capture.graph.inputs, tuple(nodes), capture.graph.outputs)
    parts = tuple([Checkpoint(places[part.first], places[part.last]) for part in capture.checkpoints])
    return replace(capture, graph=graph, checkpoints=parts)
