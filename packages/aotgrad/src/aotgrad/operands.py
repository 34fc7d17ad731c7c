"""The values that a node uses."""

from __future__ import annotations

from stagewire.graph import Dict, List, Node, Ref, Slice, Tuple, references

__all__ = ["operands"]

_CONTAINERS = frozenset((Tuple, List, Dict, Slice))


def operands(node: Node) -> tuple[str, ...]:
    """The names of the values that `node` uses, each once, in order of first use.

    Every pass asks this for every node: arguments that are plain references take no generator.
    """
    names: list[str] = []
    for arg in (*node.args, *node.kwargs.values()) if node.kwargs else node.args:
        kind = type(arg)
        if kind is Ref:
            names.append(arg.name)
        elif kind is List or kind is Tuple:
            for item in arg.items:
                if type(item) is Ref:
                    names.append(item.name)
                elif type(item) in _CONTAINERS:
                    names.extend(references(item))
        elif kind in _CONTAINERS:
            names.extend(references(arg))
    return tuple(names) if len(names) < 2 else tuple(dict.fromkeys(names))
