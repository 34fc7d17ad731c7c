"""Cut a joint graph in two where a partition says."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from aotgrad.errors import BadPartitioner, PartitionError
from aotgrad.joint import Joint
from aotgrad.ops import is_random
from aotgrad.partition.needs import Needs, byte_size, needs_of
from aotgrad.partition.recompute_bans import copies_of_inputs
from aotgrad.partition.schedule import backward_nodes
from stagewire import grad
from stagewire.expr import Dim
from stagewire.graph import Graph, Node, Ref, Value, definitions, references
from stagewire.graph_passes import live_nodes, operands, rename_node, unused_name, with_nodes
from stagewire.prim import PartitionReport, Prim
from stagewire.symbols import bound_symbols, symbols_of_nodes, symbols_of_type
from stagewire.types import ScalarType, TensorType


class Partition(msgspec.Struct, frozen=True):
    """saved: names of forward values and inputs that the backward is given; the rest it computes again from them."""

    saved: tuple[str, ...]


Partitioner = Callable[[Joint], Partition]
"""What a joint graph's forward saves for its backward."""


def split(joint: Joint, partition: Partition) -> Prim:
    """Both directions, as a partition says; raises `PartitionError` if the backward cannot be computed from it.

    Without a backward there is nothing to decide.
    """
    if not joint.has_backward:
        forward = with_nodes(joint.graph, live_nodes(joint.graph))
        return Prim(binding=replace(joint.binding, inputs=used_inputs(joint.binding, forward, ())), forward=forward)
    if not isinstance(partition, Partition):
        raise BadPartitioner(f"the partitioner returned a {type(partition).__name__}")
    needs = needs_of(joint)
    values, wanted = definitions(joint.graph), dict.fromkeys(partition.saved)
    for name in wanted:
        if name not in values:
            raise PartitionError(f"there is no value {name} to save")
    mentioned = (name for node in joint.graph.nodes for name in (*operands(node), *(one.name for one in node.results)))
    saved = tuple(dict.fromkeys((*(name for name in mentioned if name in wanted), *wanted)))
    recomputed: list[Node] = []
    nodes = backward_nodes(joint, needs, frozenset(saved), recomputed)
    forward, slots = _forward(joint, needs, saved, values)
    ends = tuple(ref for ref in joint.gradient_refs if isinstance(ref, Ref))
    is_symbolic = bool(joint.binding.symbols)
    sizes = unbound_symbols(tuple(values[name] for name in saved), joint.tangent_values, nodes) if is_symbolic else ()
    slots += tuple(grad.SavedSize(name) for name in sizes)
    numbers = tuple(Value(name, ScalarType("int")) for name in sizes)
    starts = tuple(values[name] for name in saved) + numbers + joint.tangent_values
    backward = Graph(starts, nodes, ends)
    again, devices = inputs_of_gradients(joint, needs)
    return Prim(
        binding=replace(
            joint.binding, saved=slots, input_gradients=_positions(joint),
            inputs=used_inputs(joint.binding, forward, slots), gradient_inputs=again, gradient_devices=devices,
        ),
        forward=forward,
        backward=backward,
        partition=_report(joint, needs, saved, recomputed, values),
    )  # fmt: skip


def _positions(joint: Joint) -> tuple[int | None, ...]:
    """For each input the number of its gradient among those that there are."""
    position = itertools.count()
    return tuple([next(position) if isinstance(ref, Ref) else None for ref in joint.gradient_refs])


def _forward(
    joint: Joint, needs: Needs, saved: tuple[str, ...], values: dict[str, Value]
) -> tuple[Graph, tuple[grad.Saved, ...]]:
    """The forward graph with the saved values among its results, and where each is found.

    A copy of an input that is no result is not made: the joint graph has it for the backward, after which the program
    may have written the input.
    """
    inputs = {value.name: index for index, value in enumerate(joint.primal_values)}
    results = list(joint.result_refs)
    position = {ref.name: index for index, ref in reversed(list(enumerate(results))) if isinstance(ref, Ref)}
    nodes = [node for node in joint.graph.nodes if node.phase == "forward"]
    slots: list[grad.Saved] = []
    for name in saved:
        if name in inputs and name not in needs.mutated:
            slots.append(grad.SavedInput(inputs[name]))
            continue
        if name not in position:
            kept = name
            if name in inputs:  # the program overwrites it: keep what it held
                nodes.append(_copy(values[name], values))
                kept = nodes[-1].results[0].name
            position[name] = len(results)
            results.append(Ref(kept))
        slots.append(grad.SavedResult(position[name]))
    copies = copies_of_inputs(joint) - position.keys()
    names = {value.name: operands(node)[0] for node in nodes for value in node.results if value.name in copies}
    graph = Graph(joint.primal_values, tuple([rename_node(node, names) for node in nodes]), tuple(results))
    return with_nodes(graph, live_nodes(graph)), tuple(slots)


def _copy(value: Value, values: dict[str, Value]) -> Node:
    """A copy of an input, in the same strides."""
    name, kind = unused_name(f"{value.name}_before", values), value.type
    assert isinstance(kind, TensorType)
    values[name] = Value(name, TensorType(kind.dtype, kind.shape, kind.stride, 0, kind.device))
    return Node("prims.clone", (Ref(value.name),), {}, (values[name],))


def _report(
    joint: Joint, needs: Needs, saved: tuple[str, ...], recomputed: list[Node], values: dict[str, Value]
) -> PartitionReport:
    inputs = {value.name for value in joint.primal_values} - needs.mutated

    def total(names: tuple[str, ...]) -> Dim:
        return sum(byte_size(values[name].type) for name in names if name not in inputs)

    return PartitionReport(
        saved_bytes=total(saved),
        saved_bytes_without_recompute=total(needs.direct),
        recomputed=tuple(value.name for node in recomputed for value in node.results),
    )


def inputs_of_gradients(joint: Joint, needs: Needs) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The inputs on whose values gradients depend, but for those that the program overwrites; and the devices of the
    random numbers on which they depend."""
    sources = dict(needs.sources(needs.direct))
    drawn = (value.type for node in sources.values() if node is not None and is_random(node) for value in node.results)
    devices = {kind.device for kind in drawn if isinstance(kind, TensorType)}
    given = enumerate(joint.binding.inputs)
    return tuple(n for n, item in given if item.name in sources and not item.mutated), tuple(sorted(devices))


def used_inputs(binding: grad.Binding, forward: Graph, saved: tuple[grad.Saved, ...]) -> tuple[grad.BoundInput, ...]:
    """The inputs of a binding, marked where neither half nor an output reads them."""
    names = {name for node in forward.nodes for name in operands(node)}
    names.update(name for arg in forward.outputs for name in references(arg))
    numbers = {slot.input for slot in saved if isinstance(slot, grad.SavedInput)} | grad.returned_inputs(binding)
    return tuple(
        given if given.name in names or number in numbers else replace(given, used=False)
        for number, given in enumerate(binding.inputs)
    )


def unbound_symbols(saved: tuple[Value, ...], tangents: tuple[Value, ...], nodes: tuple[Node, ...]) -> tuple[str, ...]:
    """The symbols to hand over as numbers: tangents do not show one, for a backward may run without some of them."""
    bound = {name for value in saved for name, _, _ in bound_symbols(value)}
    used = symbols_of_nodes(nodes).union(*(symbols_of_type(value.type) for value in (*saved, *tangents)))
    return tuple(sorted(used - bound))
