"""The backward of those calls in which only some tangents arrive: of a model that returns logits and a loss, the loss.

A tangent that does not arrive is zero. A backward is linear in its tangents, so whatever depends on such tangents alone
is zero as well, and a sum with a zero is its other operand: neither has to be computed, nor held in memory.
"""

from __future__ import annotations

from stagewire.capture import Capture
from stagewire.grad import Binding, BoundInput, Fresh, Literally
from stagewire.graph import Arg, Graph, Node, Ref, Value
from stagewire.graph_passes import live_nodes, operands, rename_node
from stagewire.prim import Prim
from stagewire.types import ScalarType


def is_linear(capture: Capture) -> bool:
    """Is every derivative torch's own: a custom function's backward may do as it likes with a zero."""
    return not capture.functions


def partial_backward(document: Prim, arrived: tuple[bool, ...]) -> Prim | None:
    """A document whose forward is the backward of `document` for the tangents that arrived, on (*saved, *arrived); None
    where a zero meets anything but a plain sum.

    A gradient that depends on the others alone is the literal None.
    """
    backward = document.backward
    if backward is None:
        return None
    first = len(document.binding.saved)
    missing = {value.name for value, here in zip(backward.inputs[first:], arrived, strict=True) if not here}
    zeros, names, nodes = set(missing), {}, []
    values = {value.name: value for node in backward.nodes for value in node.results}
    values |= {value.name: value for value in backward.inputs}
    tangents = {value.name for value in backward.inputs[first:]}
    for node in backward.nodes:
        node = rename_node(node, names)
        moving = [name for name in operands(node) if name in tangents]
        tangents.update(value.name for value in node.results if moving)
        if not moving or not zeros.intersection(moving):
            nodes.append(node)
        elif zeros.issuperset(moving):
            zeros.update(value.name for value in node.results)
        elif (other := _other_operand(node, zeros, values)) is not None:
            names[node.results[0].name] = other
        else:
            return None
    outputs = tuple(_output(arg, names, zeros) for arg in backward.outputs)
    inputs = tuple(value for value in backward.inputs if value.name not in missing)
    graph = Graph(inputs, tuple(nodes), outputs)
    forward = Graph(inputs, live_nodes(graph), outputs)
    return Prim(binding=_binding(graph, document.binding), forward=forward, opset=document.opset)


_SUMS = frozenset(("aten.add.Tensor", "prims.add"))


def _other_operand(node: Node, zeros: set[str], values: dict[str, Value]) -> str | None:
    """The operand that a sum with a zero is, if it has the type of the sum."""
    if node.target not in _SUMS or node.kwargs or not all(isinstance(arg, Ref) for arg in node.args):
        return None
    left, right = (arg.name for arg in node.args)
    other = right if left in zeros else left
    return other if values[other].type == node.results[0].type else None


def _output(arg: Arg, names: dict[str, str], zeros: set[str]) -> Arg:
    if not isinstance(arg, Ref):
        return arg
    name = names.get(arg.name, arg.name)
    return None if name in zeros else Ref(name)


def _binding(graph: Graph, whole: Binding) -> Binding:
    roles = (("symbol" if isinstance(value.type, ScalarType) else "tensor") for value in graph.inputs)
    inputs = [BoundInput(value.name, value.type, role) for value, role in zip(graph.inputs, roles, strict=True)]
    outputs = [Fresh(number) if isinstance(arg, Ref) else Literally(None) for number, arg in enumerate(graph.outputs)]
    return Binding(inputs=tuple(inputs), outputs=tuple(outputs), symbols=whole.symbols, facts=whole.facts)
