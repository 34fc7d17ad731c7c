"""`Joint`: what passes and partitioners work on: one graph of both directions, and how it meets the caller.

joint ::= graph binding                                            of a `Grad`, or of a `Prim` that is not cut
graph ::= (inputs*, constants*, tangents*) node* (results*, gradients*)
"""

from __future__ import annotations

import msgspec

from stagewire.grad import Binding
from stagewire.graph import Arg, Graph, Value


class Joint(msgspec.Struct, frozen=True, eq=False):
    """Forward and backward in one graph; `binding` is complete but for what the partition decides (`saved`,
    `input_gradients`)."""

    graph: Graph
    binding: Binding

    @property
    def primals(self) -> int:
        """How many graph inputs are the caller's inputs and constants; the others are tangents."""
        return len(self.binding.inputs) + len(self.binding.constants)

    @property
    def results(self) -> int:
        """How many graph outputs are results of the forward; the others are gradients, one per input, or None."""
        return len(self.graph.outputs) - (len(self.binding.inputs) if self.has_backward else 0)

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
        return bool(self.binding.tangents)

    def with_graph(self, graph: Graph) -> Joint:
        """The same binding round another graph with the same inputs and outputs in number and order."""
        return Joint(graph, self.binding)
