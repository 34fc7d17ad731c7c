"""Drop prims that return their operand, and join chains of moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from primops.prims.layouts import FLOATS, HALVES, row_major, same_layout
from stagewire.graph import Arg, Graph, List, Node, Ref, node_references
from stagewire.graph_passes import output_names, recalled, rename_node, with_nodes
from stagewire.types import TensorType, numel
from stagewire.vocabulary import find, is_prim, keeps_layout

_NEUTRAL = {"prims.mul": 1, "prims.div": 1, "prims.sub": 0, "prims.add": None}


@dataclass(frozen=True)
class RemoveIdentities:
    """After it, no prim returns its operand unchanged, and no reshape or permute follows another.

    An output of the graph that was its own operand is a `clone`: outputs are never each other. Copies between layouts
    are dropped where only prims read them; externs get the layout that they were traced with.
    """

    def run(self, graph: Graph) -> Graph:
        return _Walk(graph).run()


class _Walk:
    """One walk over the nodes: `names` of dropped values, `made` by which node."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outputs = output_names(graph)
        self.names: dict[str, str] = {}
        self.made: dict[str, Node] = {}
        self.types = {value.name: value.type for value in graph.inputs}
        self.inputs = frozenset(self.types)
        self.is_joint = {node.phase for node in graph.nodes} >= {"forward", "backward"}
        self.read_by_extern = {
            name for node in graph.nodes if keeps_layout(node.target) for name in node_references(node)
        }

    def run(self) -> Graph:
        nodes: list[Node] = []
        for node in self.graph.nodes:
            node = rename_node(node, self.names)
            rewrite = _REWRITES.get(node.target)
            if rewrite is not None:
                node = rewrite(self, node)
                if node is None:
                    continue
            for value in node.results:
                self.types[value.name] = value.type
                self.made[value.name] = node
            nodes.append(node)
        return with_nodes(self.graph, nodes, self.names)

    def dropped(self, node: Node, operand: Arg) -> Node | None:
        """`node` is `operand`: forgotten, or a clone of it where the graph gives it out, unless it is a view of what is
        fresh memory."""
        result = node.results[0]
        if result.name in self.outputs:
            if not (_is_view(node) and self.is_fresh(operand, node)):
                return recalled(node, "prims.clone", (operand,))
            self.outputs.add(operand.name)  # type: ignore[union-attr]
        if result.name in self.read_by_extern:
            mine, theirs = result.type, self.types[operand.name]  # type: ignore[union-attr]
            if not same_layout(mine.shape, mine.stride, theirs.stride):  # type: ignore[union-attr]
                return recalled(node, "prims.clone", (operand,))
            self.read_by_extern.add(operand.name)  # type: ignore[union-attr]
        self.names[result.name] = operand.name  # type: ignore[union-attr]
        return None

    def is_fresh(self, arg: Arg, like: Node) -> bool:
        """Whether a value has memory of its own, is no output yet, and is of the phase and layout of a node."""
        node, type = self.made.get(arg.name), like.results[0].type  # type: ignore[union-attr]
        if node is None or arg.name in self.outputs or _is_view(node):  # type: ignore[union-attr]
            return False
        return node.phase == like.phase and same_layout(type.shape, type.stride, self.type_of(arg).stride)  # type: ignore[union-attr]

    def type_of(self, arg: Arg) -> TensorType:
        return self.types[arg.name]  # type: ignore[union-attr,return-value]

    def maker(self, arg: Arg, target: str) -> Node | None:
        """The node that made `arg`, if it is a `target`."""
        node = self.made.get(arg.name) if type(arg) is Ref else None
        return node if node is not None and node.target == target else None


def _is_view(node: Node) -> bool:
    op = find(node.target) if is_prim(node.target) else None
    return node.effect == "aliases" or (op is not None and op.is_view)


def _clone(walk: _Walk, node: Node) -> Node | None:
    """The copy of an input stays in a joint graph, for whoever cuts it: the program may write the input after it."""
    if node.results[0].name in walk.outputs:
        return node
    if walk.is_joint and node.phase == "forward" and node.args[0].name in walk.inputs:  # type: ignore[union-attr]
        mine, given = node.results[0].type, walk.type_of(node.args[0])
        if same_layout(mine.shape, mine.stride, given.stride):  # type: ignore[union-attr]
            return node
    return walk.dropped(node, node.args[0])


def _reshape(walk: _Walk, node: Node) -> Node | None:
    before = walk.maker(node.args[0], "prims.reshape")
    if before is not None:
        node = recalled(node, node.target, (before.args[0], node.args[1]))
    return _same_shape(walk, node)


def _permute(walk: _Walk, node: Node) -> Node | None:
    before = walk.maker(node.args[0], "prims.permute")
    if before is not None:
        inner, outer = before.args[1].items, node.args[1].items  # type: ignore[union-attr]
        node = recalled(node, node.target, (before.args[0], List(tuple([inner[d] for d in outer]))))
    order = node.args[1].items  # type: ignore[union-attr]
    return walk.dropped(node, node.args[0]) if order == tuple(range(len(order))) else node


def _broadcast(walk: _Walk, node: Node) -> Node | None:
    before = walk.maker(node.args[0], "prims.broadcast_in_dim")
    if before is not None:
        inner, outer = before.args[2].items, node.args[2].items  # type: ignore[union-attr]
        node = recalled(node, node.target, (before.args[0], node.args[1], List(tuple([outer[d] for d in inner]))))
    return _same_shape(walk, node)


def _same_shape(walk: _Walk, node: Node) -> Node | None:
    same = walk.type_of(node.args[0]).shape == node.results[0].type.shape  # type: ignore[union-attr]
    return walk.dropped(node, node.args[0]) if same else node


def _as_strided(walk: _Walk, node: Node) -> Node | None:
    """All elements in their order are a reshape."""
    operand, size, stride, offset = node.args
    shape: tuple[Any, ...] = size.items  # type: ignore[union-attr]
    is_whole = offset == 0 and numel(walk.type_of(operand).shape) == numel(shape)
    if not is_whole or not same_layout(shape, stride.items, row_major(shape)):  # type: ignore[union-attr]
        return node
    return _reshape(walk, recalled(node, "prims.reshape", (operand, size)))


def _convert(walk: _Walk, node: Node) -> Node | None:
    """The same dtype; a half widened and narrowed again."""
    dtype = node.results[0].type.dtype  # type: ignore[union-attr]
    if walk.type_of(node.args[0]).dtype == dtype:
        return walk.dropped(node, node.args[0])
    before = walk.maker(node.args[0], "prims.convert_element_type")
    if before is None:
        return node
    source, middle = walk.type_of(before.args[0]).dtype, before.results[0].type.dtype  # type: ignore[union-attr]
    if source == dtype and (source, middle) in _EXACT:
        return walk.dropped(node, before.args[0])
    if (source, middle) in _EXACT and dtype in FLOATS:
        return recalled(node, node.target, (before.args[0], node.args[1]))
    return node


_EXACT = frozenset(
    {(half, wide) for half in HALVES for wide in ("float32", "float64")}
    | {("float32", "float64")}
    | {("bool", wide) for wide in (*FLOATS, "int64", "int32", "int16", "int8", "uint8")}
    | {("int32", "int64"), ("int16", "int64"), ("int8", "int64"), ("uint8", "int64"), ("int32", "float64")}
)
"""(narrow, wide): every number of the first is one of the second."""


def _neutral(walk: _Walk, node: Node) -> Node | None:
    """x * 1, 1 * x, x / 1, x - 0; x + 0 for integers (-0.0 + 0.0 is 0.0)."""
    left, right = node.args
    neutral = _NEUTRAL[node.target]
    if neutral is None:
        if node.results[0].type.dtype in FLOATS:  # type: ignore[union-attr]
            return node
        neutral = 0
    if type(right) in (int, float) and right == neutral:
        return walk.dropped(node, left)
    if node.target in ("prims.mul", "prims.add") and type(left) in (int, float) and left == neutral:
        return walk.dropped(node, right)
    return node


_REWRITES = {
    "prims.clone": _clone,
    "prims.reshape": _reshape,
    "prims.permute": _permute,
    "prims.broadcast_in_dim": _broadcast,
    "prims.slice": _same_shape,
    "prims.as_strided": _as_strided,
    "prims.convert_element_type": _convert,
    "prims.where": lambda walk, node: walk.dropped(node, node.args[1]) if node.args[1] == node.args[2] else node,
    **dict.fromkeys(_NEUTRAL, _neutral),
}
