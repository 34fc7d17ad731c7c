"""torch.autograd.forward_ad: the calls between entering a dual level and leaving it are a function of the graph.

    with dual_level(): calls   ->   results = custom.dual_level((captured,))

The function means its calls inside of a dual level (`absint.transforms`), and gives all that they compute. They are
evaluated inside of one, so that torch's own forward mode says what has a tangent. The level has to be left before the
graph ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.autograd import forward_ad

from bytecap.context_types import Tracer
from bytecap.errors import CannotRebuild, UnsupportedCall
from bytecap.graph.builder import GraphBuilder
from bytecap.nodes.bodies import wires
from bytecap.nodes.torch_calls import call_torch
from bytecap.objects.base import Value
from bytecap.objects.constant import NONE, Constant
from bytecap.objects.containers.sequences import TupleValue
from stagewire.capture import CUSTOM, CustomFunction, Transform
from stagewire.graph import Graph, Node, Ref, Tuple, free_names


def _enter(tracer: Tracer) -> Value:
    if tracer.graph.is_body or tracer.graph.inference.is_on:
        raise UnsupportedCall("a dual level inside of a function of the graph, of another or of torch.inference_mode")
    forward_ad.enter_dual_level()
    tracer.graphs.append(GraphBuilder(tracer.graph, is_transformed=True))
    tracer.graph.dual_writes = len(tracer.mode.written)
    return Constant(0)


def _leave(tracer: Tracer, *, level: Value = NONE) -> Value:
    _check_entered(tracer, level)
    inside = tracer.graph
    made = inside.defined
    tensors = [tensor.abstract for tensor in tracer.inputs.tensors.values() if tensor.name not in made]
    written = {id(memory) for memory in tracer.mode.written[inside.dual_writes :]}
    if not written.isdisjoint(id(tensor.storage_record) for tensor in tensors):
        raise UnsupportedCall("a write into a tensor from outside of a dual level")
    forward_ad.exit_dual_level()
    tracer.graphs.pop()
    if not made:
        return NONE
    results = tuple(made.values())
    captured = free_names(inside.nodes, [], [])
    inputs = wires(tracer.inputs.named(name) for name in captured)
    function = CustomFunction(
        name=tracer.graph.name("dual_level"),
        operands=0,
        results=len(results),
        forward=Graph(inputs, tuple(inside.nodes), tuple(Ref(value.name) for value in results)),
        transform=Transform(kind="dual_level", arguments=0, outputs=len(results)),
    )
    tracer.graph.functions.append(function)
    given = Tuple(tuple(Ref(name) for name in captured))
    tracer.graph.append(Node(CUSTOM + function.name, (given,), {}, results, tracer.line()))
    return NONE


def _check_entered(tracer: Tracer, level: Value) -> None:
    if tracer.graph.dual_writes is None or level.concrete() not in (None, 0):
        raise UnsupportedCall("torch.autograd.forward_ad outside of the dual level")


def _make_dual(tracer: Tracer, tensor: Value, tangent: Value, *, level: Value = NONE) -> Value:
    _check_entered(tracer, level)
    return call_torch(tracer, forward_ad.make_dual, [tensor, tangent], {})


def _unpack_dual(tracer: Tracer, tensor: Value, *, level: Value = NONE) -> Value:
    if all(graph.dual_writes is None for graph in tracer.graphs) and level.is_none():
        return TupleValue([tensor, NONE], cls=forward_ad.UnpackedDualTensor)
    _check_entered(tracer, level)
    return call_torch(tracer, forward_ad.unpack_dual, [tensor], {})


def refuse_open_level(tracer: Tracer) -> None:
    """The capture ends: dual levels were left."""
    if tracer.graph.dual_writes is not None:
        raise CannotRebuild("torch.autograd.forward_ad.dual_level that is entered")


DUAL_LEVELS: dict[Any, Callable[..., Value]] = {
    forward_ad.enter_dual_level: _enter,
    forward_ad.exit_dual_level: _leave,
    forward_ad.make_dual: _make_dual,
    forward_ad.unpack_dual: _unpack_dual,
}
