"""Give each result of the forward memory of its own."""

from __future__ import annotations

from typing import TypeGuard

import msgspec
from msgspec.structs import replace

from absint import from_wire
from absint.strides import is_dense
from aotgrad.errors import UnsupportedOutput
from aotgrad.joint import Joint
from aotgrad.ops import is_view, memory_roots
from stagewire.graph import Arg, DeviceArg, DTypeArg, Graph, List, MemoryFormatArg, Node, Ref, Value, definitions
from stagewire.graph_passes import unused_name
from stagewire.types import TensorType, ValueType, contiguous_stride, overlaps


class SeparateResults(msgspec.Struct, frozen=True):
    """After it, no two results of the forward share memory, and none is an input or a view of one.

    Outputs that share memory in the program do so by the binding (`ViewOf`); those that share it here do so because
    equal values were merged, or because a copy became the value that it copied.
    """

    def __call__(self, joint: Joint) -> Joint:
        graph = joint.graph
        roots = memory_roots(graph.nodes)
        taken = {value.name for value in graph.inputs}
        values = definitions(graph)
        makers = {value.name: node for node in graph.nodes for value in node.results}
        clones: list[Node] = []
        outputs: list[Arg] = []
        for position, arg in enumerate(graph.outputs):
            if position < joint.results and isinstance(arg, Ref):
                root = roots.get(arg.name, arg.name)
                if root in taken:
                    arg, copies = _copied(values[arg.name], values, makers)
                    clones += copies
                else:
                    taken.add(root)
            outputs.append(arg)
        if not clones:
            return joint
        backward = next((i for i, node in enumerate(graph.nodes) if node.phase == "backward"), len(graph.nodes))
        nodes = (*graph.nodes[:backward], *clones, *graph.nodes[backward:])
        return joint.with_graph(Graph(graph.inputs, nodes, tuple(outputs)))


def _copied(value: Value, values: dict[str, Value], makers: dict[str, Node]) -> tuple[Ref, list[Node]]:
    """A copy of `value` in the same strides.

    No op makes memory that shows an element several times: of a view that does (`expand`, `unfold`, what is turned
    after them) the value that it is a view of is copied, and viewed again.
    """
    views: list[Node] = []
    source = value
    while _repeats_elements(source.type) and _is_single_view(node := makers.get(source.name)):
        views.append(node)
        source = values[node.args[0].name]  # type: ignore[union-attr]
    nodes = copy_nodes(source, f"{source.name}_copy", values)
    for node in reversed(views):
        kind = node.results[0].type
        offset = kind.storage_offset - source.type.storage_offset  # type: ignore[union-attr]
        made = Value(unused_name(f"{node.results[0].name}_copy", values), replace(kind, storage_offset=offset))
        values[made.name] = made
        given = (Ref(nodes[-1].results[0].name), *node.args[1:])
        nodes.append(replace(node, args=given, results=(made,), phase="forward"))
    return Ref(nodes[-1].results[0].name), nodes


def _is_single_view(node: Node | None) -> TypeGuard[Node]:
    if node is None or len(node.results) != 1 or not is_view(node.target):
        return False
    return isinstance(node.args[0], Ref) and node.target != "aten.as_strided.default"  # which counts from the storage


def _repeats_elements(kind: ValueType) -> bool:
    """Whether several elements of a tensor are one in memory, as far as sizes are known."""
    if not isinstance(kind, TensorType) or any(size == 0 for size in kind.shape):
        return False
    if all(isinstance(number, int) for number in (*kind.shape, *kind.stride)):
        return overlaps(kind.shape, kind.stride)
    return any(step == 0 and size != 1 for step, size in zip(kind.stride, kind.shape, strict=True))


def copy_nodes(value: Value, name: str, values: dict[str, Value]) -> list[Node]:
    """Nodes, of which the last makes a copy of `value` in the same strides; their results are put into `values`."""
    kind = value.type
    if not isinstance(kind, TensorType):
        raise UnsupportedOutput(f"{value.name} is no tensor, and a result of its own twice")
    copy = Value(unused_name(name, values), TensorType(kind.dtype, kind.shape, kind.stride, 0, kind.device))
    values[copy.name] = copy
    if _is_dense(kind):
        kwargs: dict[str, Arg] = {}
        if kind.stride == contiguous_stride(kind.shape):
            kwargs["memory_format"] = MemoryFormatArg("contiguous_format")
        return [Node("aten.clone.default", (Ref(value.name),), kwargs, (copy,))]
    memory = Value(unused_name(f"{name}_memory", values), copy.type)
    values[memory.name] = memory
    options: dict[str, Arg] = {"dtype": DTypeArg(kind.dtype), "device": DeviceArg(kind.device)}
    return [
        Node("aten.empty_strided.default", (List(kind.shape), List(kind.stride)), options, (memory,)),
        Node("aten.copy.default", (Ref(memory.name), Ref(value.name)), {}, (copy,)),
    ]


def _is_dense(kind: TensorType) -> bool:
    """Whether a clone has the strides of what it copies; False where symbolic sizes leave that open."""
    if kind.stride == contiguous_stride(kind.shape):
        return True
    if not kind.is_static:
        return False
    meta = from_wire(kind)
    return is_dense(meta.shape, meta.stride)
