"""Uses of values by other names, and which values a graph gives out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stagewire.graph import Arg, Graph, List, Node, Ref, Tuple, map_arg, references


def renamed(arg: Arg, names: Mapping[str, str]) -> Arg:
    """`arg` with its references renamed; itself where nothing changes."""
    kind = type(arg)
    if kind is Ref:
        name = names.get(arg.name)
        return arg if name is None else Ref(name)
    if kind is List or kind is Tuple:
        items = tuple([renamed(item, names) for item in arg.items])
        return arg if items == arg.items else kind(items)
    if kind in _ATOMS:
        return arg
    return map_arg(arg, lambda leaf: renamed(leaf, names) if type(leaf) is Ref else leaf)


_ATOMS = frozenset((type(None), bool, int, float, str))


def renamed_node(node: Node, names: Mapping[str, str]) -> Node:
    """`node` with the values it uses renamed; itself where nothing changes."""
    if not names or not any(name in names for name in used_names(node)):
        return node
    args = tuple([renamed(arg, names) for arg in node.args])
    kwargs = {key: renamed(arg, names) for key, arg in node.kwargs.items()} if node.kwargs else node.kwargs
    return Node(node.target, args, kwargs, node.results, node.line, node.phase)


def used_names(node: Node) -> list[str]:
    """The names of the values that a node uses, with repetitions."""
    found: list[str] = []
    collect = _collector(found.append)
    for arg in node.args:
        collect(arg)
    for arg in node.kwargs.values():
        collect(arg)
    return found


def _collector(add: Callable[[str], None]) -> Callable[[Arg], None]:
    def collect(arg: Arg) -> None:
        kind = type(arg)
        if kind is Ref:
            add(arg.name)
        elif kind is List or kind is Tuple:
            for item in arg.items:
                collect(item)
        elif kind not in _ATOMS:
            for name in references(arg):
                add(name)

    return collect


def output_names(graph: Graph) -> set[str]:
    """The values that the graph gives out."""
    return {name for arg in graph.outputs for name in references(arg)}


def with_nodes(graph: Graph, nodes: list[Node], names: Mapping[str, str] | None = None) -> Graph:
    """The graph with other nodes, its outputs renamed."""
    outputs = graph.outputs if not names else tuple([renamed(arg, names) for arg in graph.outputs])
    return Graph(graph.inputs, tuple(nodes), outputs)
