"""Inputs that are integers: whoever names one means the symbol of its name."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from stagewire.expr import symbol
from stagewire.graph import Arg, Graph, List, Node, Ref, Tuple


def with_symbols(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with references to these inputs replaced by their symbols."""
    return msgspec.structs.replace(
        graph,
        nodes=tuple(_node(node, names) for node in graph.nodes),
        outputs=tuple(_arg(output, names) for output in graph.outputs),
    )


def _node(node: Node, names: Collection[str]) -> Node:
    args = tuple(_arg(arg, names) for arg in node.args)
    kwargs = {key: _arg(arg, names) for key, arg in node.kwargs.items()}
    return (
        node if args == node.args and kwargs == node.kwargs else msgspec.structs.replace(node, args=args, kwargs=kwargs)
    )


def _arg(arg: Arg, names: Collection[str]) -> Arg:
    match arg:
        case Ref(name) if name in names:
            return symbol(name)
        case List(items):
            return List(tuple(_arg(item, names) for item in items))
        case Tuple(items):
            return Tuple(tuple(_arg(item, names) for item in items))
    return arg
