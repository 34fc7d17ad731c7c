"""Give each result of the forward memory of its own."""

from __future__ import annotations

import msgspec

from absint import from_wire
from absint.strides import is_dense
from aotgrad.errors import UnsupportedOutput
from aotgrad.joint import Joint
from aotgrad.ops import is_view
from stagewire.graph import Arg, DeviceArg, DTypeArg, Graph, List, MemoryFormatArg, Node, Ref, Value, definitions
from stagewire.types import TensorType, contiguous_stride

__all__ = ["SeparateResults"]


class SeparateResults(msgspec.Struct, frozen=True):
    """After it, no two results of the forward share memory, and none is an input or a view of one.

    Outputs that share memory in the program do so by the binding (`ViewOf`); those that share it here do so because
    equal values were merged, or because a copy became the value that it copied.
    """

    def __call__(self, joint: Joint) -> Joint:
        graph = joint.graph
        roots = memory_roots(graph)
        taken = {value.name for value in graph.inputs}
        values = definitions(graph)
        clones: list[Node] = []
        outputs: list[Arg] = []
        for position, arg in enumerate(graph.outputs):
            if position < joint.results and isinstance(arg, Ref):
                if roots[arg.name] in taken:
                    copies = copy_nodes(values[arg.name], f"{arg.name}_copy", values)
                    clones += copies
                    arg = Ref(copies[-1].results[0].name)
                else:
                    taken.add(roots[arg.name])
            outputs.append(arg)
        if not clones:
            return joint
        backward = next((i for i, node in enumerate(graph.nodes) if node.phase == "backward"), len(graph.nodes))
        nodes = (*graph.nodes[:backward], *clones, *graph.nodes[backward:])
        return joint.with_graph(Graph(graph.inputs, nodes, tuple(outputs)))


def memory_roots(graph: Graph) -> dict[str, str]:
    """For each value the value whose memory it looks at."""
    roots = {value.name: value.name for value in graph.inputs}
    for node in graph.nodes:
        shares = node.target in _MAY_SHARE or is_view(node.target)
        for value in node.results:
            source = node.args[0] if node.args else None
            roots[value.name] = roots[source.name] if shares and isinstance(source, Ref) else value.name
    return roots


# Not views by their schema, but they may return their argument's memory.
_MAY_SHARE = frozenset(("aten._unsafe_view.default", "aten.lift.default"))


def copy_nodes(value: Value, name: str, values: dict[str, Value]) -> list[Node]:
    """Nodes, of which the last makes a copy of `value` in the same strides; their results are put into `values`."""
    kind = value.type
    if not isinstance(kind, TensorType):
        raise UnsupportedOutput(f"{value.name} is no tensor, and a result of its own twice")
    copy = Value(_unused(name, values), TensorType(kind.dtype, kind.shape, kind.stride, 0, kind.device))
    values[copy.name] = copy
    if _is_dense(kind):
        kwargs: dict[str, Arg] = {}
        if kind.stride == contiguous_stride(kind.shape):
            kwargs["memory_format"] = MemoryFormatArg("contiguous_format")
        return [Node("aten.clone.default", (Ref(value.name),), kwargs, (copy,))]
    memory = Value(_unused(f"{name}_memory", values), copy.type)
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


def _unused(name: str, values: dict[str, Value]) -> str:
    while name in values:
        name += "_"
    return name
