"""Runs a graph node by node with eager ATen: the reference for the halves, and what differentiates gradients again."""

from __future__ import annotations

from absint.cpu_kernels import workspace_call
from absint.executor import Executor
from absint.executor import executor as executor_of
from absint.meta import leaves
from absint.targets import resolve
from stagewire.graph import Graph

__all__ = ["Executor", "executor"]

# Lazy conjugation and negation are bits on a tensor, which some kernels refuse; a graph means the numbers. The
# partition keeps what the program overwrites by a prim.
_MEANT = {
    "aten._conj.default": "aten._conj_physical.default",
    "aten._neg_view.default": "aten.neg.default",
    "prims.clone": "aten.clone.default",
}


def executor(graph: Graph) -> Executor:
    """A callable over the graph's inputs, or one list of them that it empties; see `absint.executor`."""
    return executor_of(graph, lambda node: workspace_call(node, resolve(_MEANT.get(node.target, node.target))), leaves)
