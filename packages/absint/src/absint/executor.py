"""Runs a graph node by node on real tensors: the meaning of graphs, and what differentiates gradients again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absint.cpu_kernels import workspace_call
from absint.errors import UnwirableArgument, WrongResults
from absint.meta import leaves
from absint.targets import resolve
from absint.wire import from_arg
from stagewire.expr import Expr, evaluate
from stagewire.graph import Graph, Node, Ref, Value, last_uses
from stagewire.symbols import bind_sizes

Executor = Callable[..., Sequence[Any]]

# Lazy conjugation and negation are bits on a tensor, which some kernels refuse; a graph means the numbers. The
# partition keeps what the program overwrites by a prim.
_MEANT = {
    "aten._conj.default": "aten._conj_physical.default",
    "aten._neg_view.default": "aten.neg.default",
    "prims.clone": "aten.clone.default",
}


class Interpreter:
    """A callable over the inputs of a graph that returns its outputs as a tuple; holds no state between calls.

    Values are dropped after their last use, so that no more memory is held than in eager. Given one list of the inputs
    instead, it empties the list, and drops those too. A subclass says otherwise what a node calls, what sizes symbols
    have, and what becomes of a result.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._functions = [self.function(node) for node in graph.nodes]
        self._drops = last_uses(graph)

    def function(self, node: Node) -> Callable[..., Any]:
        """What a node calls: here an operator of ATen."""
        return workspace_call(node, resolve(_MEANT.get(node.target, node.target)))

    def sizes(self, inputs: Sequence[Any]) -> Mapping[str, int]:
        """The value of each size symbol."""
        return bind_sizes(self.graph.inputs, inputs)

    def result(self, value: Value, made: Any, sizes: Mapping[str, int]) -> Any:
        """What stands for a result that the call of a node has made."""
        return made

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], list) else inputs
        sizes = self.sizes(given)
        values = {value.name: x for value, x in zip(self.graph.inputs, given, strict=True)}
        if isinstance(given, list):
            given.clear()

        def read(leaf: Any) -> Any:
            if isinstance(leaf, Ref):
                return values[leaf.name]
            if isinstance(leaf, Expr):
                return evaluate(leaf, sizes)
            raise UnwirableArgument(f"{type(leaf).__name__} has no value outside of its process")

        for node, function, dead in zip(self.graph.nodes, self._functions, self._drops, strict=True):
            values.update(self._results(node, function, read, sizes))
            for name in dead:
                del values[name]
        return tuple([from_arg(output, read) for output in self.graph.outputs])

    def _results(
        self, node: Node, function: Callable[..., Any], read: Callable[[Any], Any], sizes: Mapping[str, int]
    ) -> dict[str, Any]:
        kwargs = {key: from_arg(arg, read) for key, arg in node.kwargs.items()}
        returned = function(*[from_arg(arg, read) for arg in node.args], **kwargs)
        made = list(leaves(returned)) if node.results else []
        if len(made) != len(node.results):
            message = f"{node.target} gave {len(made)} results instead of {len(node.results)}"
            raise WrongResults(message, where=None if node.line is None else str(node.line))
        return {value.name: self.result(value, x, sizes) for value, x in zip(node.results, made, strict=True)}
