"""Compute once what literals alone decide on the CPU and a GPU reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

import msgspec
import torch
from msgspec.structs import replace

from absint.targets import resolve
from absint.wire import to_arg
from aotgrad.bind import read_constant, write_constant
from aotgrad.executor import executor
from aotgrad.joint import Joint
from aotgrad.ops import is_view, literal_nodes, literal_values
from stagewire.graph import DeviceArg, DTypeArg, Graph, List, Node, Ref, Value, definitions, node_references, references
from stagewire.graph_passes import live_nodes, rename_node, unused_name
from stagewire.types import TensorType, ValueType, bytes_of, contiguous

_COPY = "aten._to_copy.default"
_INDEXING = frozenset(f"aten.{name}" for name in ("index.Tensor", "index_put.default", "_unsafe_index.Tensor"))

Fixed = Mapping[str, TensorType]


class FoldConstants(msgspec.Struct, frozen=True):
    """After it, what a GPU reads of the CPU and literals alone decide (positions, masks, `torch.tensor([1, 2])`) is a
    constant on that GPU, computed by ATen as eager would; without dimensions it is a number.

    Otherwise each call computes and copies it, which the host waits for and no CUDA graph holds. What has more bytes
    than `largest` stays as it is, as does what the caller gets, who may write into it.
    """

    largest: int = 1 << 22

    def __call__(self, joint: Joint) -> Joint:
        graph = joint.graph
        if not any(map(_gpu_result, graph.nodes)):
            return joint
        fixed = _fixed(joint, self.largest)
        exposed = _exposed(graph)
        read = {id(node): _read(node, fixed, exposed) for node in graph.nodes}
        wanted = dict.fromkeys(name for names in read.values() for name in names)
        if not wanted:
            return joint
        moved = _Moved(graph, _computed(joint, fixed, wanted))
        copies: dict[str, str] = {}
        for node in graph.nodes:
            result = _gpu_result(node)
            names = {name: moved.at(name, result, node) for name in read.get(id(node), ())}  # type: ignore[arg-type]
            if names and node.target == _COPY:
                copies[node.results[0].name] = next(iter(names.values()))
            else:
                moved.nodes.append(rename_node(rename_node(node, names), copies))
        return _with_constants(joint, tuple(moved.nodes), moved.constants)


class _Moved:
    """The nodes and constants of the new graph. values: what is fixed, by name."""

    def __init__(self, graph: Graph, values: Mapping[str, torch.Tensor]) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, tuple[TensorType, torch.Tensor]] = {}
        self._values = values
        self._names = set(definitions(graph))
        self._known: dict[tuple[str, str, str], str] = {}

    def at(self, name: str, like: TensorType, node: Node) -> str:
        """The name of a fixed value on the device of `like`; what a copy makes has its dtype as well."""
        value = self._values[name]
        if node.target == _COPY:
            value = value.to(getattr(torch, like.dtype))
        dtype = str(value.dtype).removeprefix("torch.")
        key = name, dtype, like.device
        if key not in self._known:
            self._known[key] = made = unused_name(f"{name}_on_{like.device.replace(':', '_')}", self._names)
            self._names.add(made)
            type_ = contiguous(dtype, tuple(value.shape), like.device)  # type: ignore[arg-type]
            if value.dim():
                self.constants[made] = type_, value
            else:
                kwargs = {"dtype": DTypeArg(dtype), "device": DeviceArg(like.device)}  # type: ignore[arg-type]
                args = List(()), to_arg(value.item())
                results = (Value(made, type_),)
                self.nodes.append(
                    Node("aten.full.default", args, kwargs, results, node.line, node.phase, checkpoint=node.checkpoint)
                )
        return self._known[key]


def _gpu_result(node: Node) -> TensorType | None:
    """The type of the first result that is on a GPU."""
    types = (value.type for value in node.results)
    return next((one for one in types if isinstance(one, TensorType) and one.device.startswith("cuda")), None)


def _fixed(joint: Joint, largest: int) -> Fixed:
    """The values on the CPU that literals alone decide."""
    constants = joint.primal_values[len(joint.binding.inputs) :]
    given = {value.name: value.type for value in constants if getattr(value.type, "device", "") == "cpu"}
    return literal_values(joint.graph.nodes, lambda type_: _fits(type_, largest), given)  # type: ignore[return-value]


def _fits(type_: ValueType, largest: int) -> bool:
    if not isinstance(type_, TensorType) or type_.device != "cpu" or not type_.is_static:
        return False
    return bytes_of(type_) <= largest  # type: ignore[operator]


def _read(node: Node, fixed: Fixed, exposed: set[str]) -> list[str]:
    """The fixed values that a call reads from a GPU and may as well find there."""
    result = _gpu_result(node)
    if result is None:
        return []
    names = [name for name in dict.fromkeys(node_references(node)) if name in fixed]
    if node.target == _COPY:
        stays = node.results[0].name in exposed or not _is_row_major(result)
        return [] if stays else names
    if node.target in _INDEXING:
        return [name for name in names if _is_row_major(fixed[name])]
    return [name for name in names if fixed[name].shape == ()] if _is_pointwise(node.target) else []


def _is_row_major(type_: TensorType) -> bool:
    return (type_.stride, type_.storage_offset) == (contiguous(type_.dtype, type_.shape).stride, 0)


@cache
def _is_pointwise(target: str) -> bool:
    return target.startswith("aten.") and torch.Tag.pointwise in resolve(target).tags  # type: ignore[attr-defined]


def _exposed(graph: Graph) -> set[str]:
    """What the caller gets, and what such results may be windows on."""
    found = {name for arg in graph.outputs for name in references(arg)}
    for node in reversed(graph.nodes):
        if is_view(node.target) and not found.isdisjoint(value.name for value in node.results):
            found.update(node_references(node))
    return found


def _computed(joint: Joint, fixed: Fixed, names: Collection[str]) -> dict[str, torch.Tensor]:
    """These fixed values."""
    wanted = tuple(Ref(name) for name in names)
    constants = joint.primal_values[len(joint.binding.inputs) :]
    run = executor(Graph(constants, literal_nodes(joint.graph.nodes, fixed, names), wanted))
    with torch.no_grad():
        found = run(*(read_constant(constant) for constant in joint.binding.constants))
    return dict(zip([ref.name for ref in wanted], found, strict=True))


def _with_constants(
    joint: Joint, nodes: tuple[Node, ...], made: Mapping[str, tuple[TensorType, torch.Tensor]]
) -> Joint:
    """The joint graph with these nodes and further constants, without those that nothing reads any more."""
    graph = joint.graph
    nodes = live_nodes(Graph(graph.inputs, nodes, graph.outputs))
    used = {name for node in nodes for name in node_references(node)}
    used.update(name for arg in graph.outputs for name in references(arg))
    count = len(joint.binding.inputs)
    given, tangents = joint.primal_values[:count], joint.tangent_values
    kept = [
        (value, bound)
        for value, bound in zip(joint.primal_values[count:], joint.binding.constants, strict=True)
        if value.name in used
    ]
    kept += [(Value(name, type_), write_constant(name, value, type_.device)) for name, (type_, value) in made.items()]
    primals = (*given, *(value for value, _ in kept))
    binding = replace(joint.binding, constants=tuple(bound for _, bound in kept))
    return Joint(Graph((*primals, *tangents), nodes, graph.outputs), binding)
