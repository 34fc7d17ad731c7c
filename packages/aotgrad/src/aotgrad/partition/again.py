"""What it takes to compute gradients once more, from the inputs on, in a way that can be differentiated."""

from __future__ import annotations

from msgspec.structs import replace

from aotgrad.joint import Joint
from aotgrad.ops import is_random
from aotgrad.partition.needs import Needs
from stagewire.grad import Binding, BoundInput, SameAsInput, Saved, SavedInput, ViewOf
from stagewire.graph import Graph, references
from stagewire.graph_passes import operands
from stagewire.types import TensorType

__all__ = ["used_inputs", "what_gradients_take"]


def what_gradients_take(joint: Joint, needs: Needs) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The inputs on whose values gradients depend, but for those that the program overwrites; and the devices of the
    random numbers on which they depend."""
    seen: set[str] = set()
    devices: set[str] = set()
    pending = list(needs.direct)
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        node = needs.producers.get(name)
        if node is None:
            continue
        pending.extend(operands(node))
        if is_random(node):
            devices.update(value.type.device for value in node.results if isinstance(value.type, TensorType))
    given = enumerate(joint.binding.inputs)
    return tuple(n for n, item in given if item.name in seen and not item.mutated), tuple(sorted(devices))


def used_inputs(binding: Binding, forward: Graph, saved: tuple[Saved, ...]) -> tuple[BoundInput, ...]:
    """The inputs of a binding, marked where neither half nor an output reads them."""
    names = {name for node in forward.nodes for name in operands(node)}
    names.update(name for arg in forward.outputs for name in references(arg))
    numbers = {slot.input for slot in saved if isinstance(slot, SavedInput)}
    for output in binding.outputs:
        if isinstance(output, SameAsInput):
            numbers.add(output.input)
        elif isinstance(output, ViewOf) and output.of == "input":
            numbers.add(output.base)
    return tuple(
        given if given.name in names or number in numbers else replace(given, used=False)
        for number, given in enumerate(binding.inputs)
    )
