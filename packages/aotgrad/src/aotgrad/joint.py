"""`Joint`: what passes and partitioners work on: one graph of both directions, and how it meets the caller.

joint ::= graph binding
graph ::= (inputs*, constants*, tangents*) node* (results*, gradients*)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from stagewire.grad import Binding
from stagewire.graph import Arg, Graph, Value, node_references, references

__all__ = ["Joint"]


class Joint(msgspec.Struct, frozen=True, eq=False):
    """Forward and backward in one graph.

    binding: complete but for what the partition decides (`saved`, `input_gradients`).
    primals: how many graph inputs are the caller's inputs and constants; the others are tangents.
    results: how many graph outputs are results of the forward; the others are gradients, one per input, or None.
    checkpoints: for forward values made under a checkpoint of the program, which one.
    """

    graph: Graph
    binding: Binding
    primals: int
    results: int
    checkpoints: Mapping[str, int] = MappingProxyType({})

    @property
    def primal_values(self) -> tuple[Value, ...]:
        """The caller's inputs, then constants."""
        return self.graph.inputs[: self.primals]

    @property
    def tangent_values(self) -> tuple[Value, ...]:
        """Gradients of results, given to the backward."""
        return self.graph.inputs[self.primals :]

    @property
    def result_refs(self) -> tuple[Arg, ...]:
        """What the forward returns before anything is saved."""
        return self.graph.outputs[: self.results]

    @property
    def gradient_refs(self) -> tuple[Arg, ...]:
        """For each input its gradient, or None."""
        return self.graph.outputs[self.results :]

    @property
    def has_backward(self) -> bool:
        """Does any result have a history, even one through which no gradient reaches an input."""
        return bool(self.tangent_values)

    def with_graph(self, graph: Graph) -> Joint:
        """The same binding round another graph with the same inputs and outputs in number and order.

        Values of it that this graph does not know, on the way to and from those of a checkpoint, belong to it too.
        """
        checkpoints = _spread(self.checkpoints, graph) if self.checkpoints else self.checkpoints
        return Joint(graph, self.binding, self.primals, self.results, checkpoints)


def _spread(checkpoints: Mapping[str, int], graph: Graph) -> Mapping[str, int]:
    """`checkpoints`, with the forward values that only values of one checkpoint use; then with those that are used by
    the backward alone and made from values of one checkpoint."""
    forward = [node for node in graph.nodes if node.phase == "forward"]
    homes: dict[str, int | None] = dict(checkpoints)
    leaving = {name for arg in graph.outputs for name in references(arg)}
    uses: dict[str, set[int | None]] = {}
    for node in reversed(forward):
        mine = {homes[value.name] for value in node.results if value.name in homes}
        if not mine:  # a value on the way: it belongs where all of those belong that use it
            for value in node.results:
                mine |= uses.get(value.name, set()) | ({None} if value.name in leaving else set())
            if len(mine) == 1:
                homes.update((value.name, next(iter(mine))) for value in node.results)
        for name in node_references(node) if mine else ():
            uses.setdefault(name, set()).update(mine if len(mine) == 1 else {None})
    for node in forward:
        mine = {homes[name] for name in node_references(node) if name in homes}
        for value in node.results:
            if value.name not in homes and value.name not in uses and value.name not in leaving and len(mine) == 1:
                homes[value.name] = next(iter(mine))
    return {name: home for name, home in homes.items() if home is not None}
