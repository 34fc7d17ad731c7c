"""Inputs that are integers: whoever names one means the symbol of its name."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from stagewire.expr import symbol
from stagewire.graph import Arg, Graph, Node, Ref, map_arg


def with_symbols(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with references to these inputs replaced by their symbols."""

    def leaf(arg: Arg) -> Arg:
        return symbol(arg.name) if isinstance(arg, Ref) and arg.name in names else arg

    def call(node: Node) -> Node:
        args = tuple([map_arg(arg, leaf) for arg in node.args])
        kwargs = {key: map_arg(arg, leaf) for key, arg in node.kwargs.items()}
        is_same = args == node.args and kwargs == node.kwargs
        return node if is_same else msgspec.structs.replace(node, args=args, kwargs=kwargs)

    outputs = tuple([map_arg(output, leaf) for output in graph.outputs])
    return msgspec.structs.replace(graph, nodes=tuple([call(node) for node in graph.nodes]), outputs=outputs)
