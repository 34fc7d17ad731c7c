"""Uses of values by other names, and which values a graph gives out."""

from __future__ import annotations

from collections.abc import Mapping

from stagewire.graph import Arg, Graph, List, Node, Ref, Tuple, map_arg, references


def renamed(arg: Arg, names: Mapping[str, str]) -> Arg:
    """`arg` with its references renamed; itself where nothing changes."""
    kind = type(arg)
    if kind is Ref:
        name = names.get(arg.name)
        return arg if name is None else Ref(name)
    if kind is List or kind is Tuple:
        if not any(type(item) not in _ATOMS for item in arg.items):
            return arg
        return kind(tuple([renamed(item, names) for item in arg.items]))
    if kind in _ATOMS:
        return arg
    return map_arg(arg, lambda leaf: renamed(leaf, names) if type(leaf) is Ref else leaf)


_ATOMS = frozenset((type(None), bool, int, float, str))


def renamed_node(node: Node, names: Mapping[str, str]) -> Node:
    """`node` with the values it uses renamed; itself where nothing changes."""
    if not names:
        return node
    changed = False
    args: list[Arg] = []
    for arg in node.args:
        new = renamed(arg, names)
        changed = changed or new is not arg
        args.append(new)
    kwargs = node.kwargs
    if kwargs:
        kwargs = {key: renamed(arg, names) for key, arg in kwargs.items()}
        changed = changed or kwargs != node.kwargs
    return Node(node.target, tuple(args), kwargs, node.results, node.line, node.phase, node.effect) if changed else node


def used_names(node: Node) -> list[str]:
    """The names of the values that a node uses, with repetitions."""
    found: list[str] = []
    for arg in node.args:
        if type(arg) is Ref:
            found.append(arg.name)
        elif type(arg) not in _ATOMS:
            _collect(arg, found)
    for arg in node.kwargs.values():
        _collect(arg, found)
    return found


def _collect(arg: Arg, found: list[str]) -> None:
    kind = type(arg)
    if kind is Ref:
        found.append(arg.name)
    elif kind is List or kind is Tuple:
        for item in arg.items:
            if type(item) not in _ATOMS:
                _collect(item, found)
    elif kind not in _ATOMS:
        found.extend(references(arg))


def output_names(graph: Graph) -> set[str]:
    """The values that the graph gives out."""
    return {name for arg in graph.outputs for name in references(arg)}


def with_nodes(graph: Graph, nodes: list[Node], names: Mapping[str, str] | None = None) -> Graph:
    """The graph with other nodes, its outputs renamed."""
    outputs = graph.outputs if not names else tuple([renamed(arg, names) for arg in graph.outputs])
    return Graph(graph.inputs, tuple(nodes), outputs)
