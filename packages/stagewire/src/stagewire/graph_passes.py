"""What passes over graphs of every stage are made of: uses, renaming, live nodes, equal nodes.

operands(node)            the values that a node uses
rename_node(node, names)  the node using others
live_nodes(graph)         those that an output or an effect needs
merge_equal(graph, key)   nodes of one key become one
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

from msgspec.structs import replace

from stagewire.graph import ORDERED, Arg, Graph, List, Node, Ref, Tuple, map_arg, node_references, references
from stagewire.types import TensorType, ValueType

_ATOMS = frozenset((type(None), bool, int, float, str))


def operands(node: Node) -> tuple[str, ...]:
    """The names of the values that `node` uses, each once, in order of first use."""
    names = node_references(node)
    return names if len(names) < 2 else tuple(dict.fromkeys(names))


def output_names(graph: Graph) -> set[str]:
    """The values that the graph gives out."""
    return {name for arg in graph.outputs for name in references(arg)}


def rename(arg: Arg, names: Mapping[str, str]) -> Arg:
    """`arg` with references renamed by `names` (absent names stay); itself where nothing changes."""
    kind = type(arg)
    if kind is Ref:
        name = names.get(arg.name)  # type: ignore[union-attr]
        return arg if name is None else Ref(name)
    if kind is List or kind is Tuple:
        if not any(type(item) not in _ATOMS for item in arg.items):  # type: ignore[union-attr]
            return arg
        return kind(tuple([rename(item, names) for item in arg.items]))  # type: ignore
    if kind in _ATOMS:
        return arg
    return map_arg(arg, lambda leaf: rename(leaf, names) if isinstance(leaf, Ref) else leaf)


def rename_node(node: Node, names: Mapping[str, str]) -> Node:
    """`node` with the values that it uses renamed; itself where nothing changes."""
    if not names or names.keys().isdisjoint(node_references(node)):
        return node
    args = tuple([rename(arg, names) for arg in node.args])
    kwargs = {key: rename(arg, names) for key, arg in node.kwargs.items()} if node.kwargs else node.kwargs
    return Node(node.target, args, kwargs, node.results, node.line, node.phase, node.effect, node.checkpoint)


def recalled(node: Node, target: str, args: tuple[Arg, ...]) -> Node:
    """`node` as a call of another op, by position, which does nothing but compute."""
    return Node(target, args, {}, node.results, node.line, node.phase, None, node.checkpoint)


def unused_name(name: str, taken: Container[str]) -> str:
    """The name, with underscores behind it where it is taken."""
    while name in taken:
        name += "_"
    return name


def with_nodes(graph: Graph, nodes: Sequence[Node], names: Mapping[str, str] | None = None) -> Graph:
    """The graph with other nodes, its outputs renamed."""
    outputs = graph.outputs if not names else tuple([rename(arg, names) for arg in graph.outputs])
    return Graph(graph.inputs, tuple(nodes), outputs)


def with_strides_of(graph: Graph, types: Sequence[ValueType | None]) -> Graph:
    """The graph reading each input in the strides of a type; as it does where that is None, or no tensor's."""
    inputs = [
        replace(value, type=replace(value.type, stride=type_.stride))
        if isinstance(value.type, TensorType) and isinstance(type_, TensorType)
        else value
        for value, type_ in zip(graph.inputs, types, strict=True)
    ]
    return replace(graph, inputs=tuple(inputs))


def live_nodes(graph: Graph) -> tuple[Node, ...]:
    """The nodes of an `ORDERED` effect, and those that an output or one of them needs, in order."""
    needed = output_names(graph)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.effect in ORDERED or not needed.isdisjoint([value.name for value in node.results]):
            needed.update(node_references(node))
            kept.append(node)
    return tuple(reversed(kept))


def merge_equal(
    graph: Graph, key: Callable[[Node], object | None], stays: Callable[[Node, Node], bool] = lambda node, first: False
) -> Graph:
    """The graph with one node for all of an equal key, the first of them.

    key: of a node, its operands renamed by then; None for one that is not to be merged. stays: whether a node is kept
    although the first one of its key computes the same.
    """
    names: dict[str, str] = {}
    seen: dict[object, Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        node = rename_node(node, names)
        found = key(node)
        other = node if found is None else seen.setdefault(found, node)
        if other is node or stays(node, other):
            nodes.append(node)
            continue
        for old, new in zip(node.results, other.results, strict=True):
            names[old.name] = new.name
    return with_nodes(graph, nodes, names) if names else graph
