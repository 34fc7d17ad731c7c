"""torch.autograd.grad in captured code, and dual levels: one node, whose types come from running torch's engine.

A gradient is captured where all of its way lies inside of the graph. The history of an outside tensor that is no leaf
is not known here: where it may lead to another of the wanted inputs, the call is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.autograd import forward_ad

from absint.gradients import TARGET, gradients, reached
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.graph.builder import GraphBuilder, Outside
from bytecap.nodes.bodies import all_tensors, as_functions
from bytecap.nodes.torch_calls import call_torch, evaluate, record, to_host
from bytecap.objects.arrays.tensor_hooks import HookHandle
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import NONE, Constant, Value, collect
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import TupleValue
from bytecap.torch_capabilities import TORCH
from stagewire.capture import CustomFunction, Transform

# The autograd node of an outside tensor that is no leaf.
_OUTSIDE = getattr(Outside, "_backward_cls", TORCH.backward_class)
_OPTIONS = ("retain_graph", "create_graph", "only_inputs", "allow_unused", "is_grads_batched", "materialize_grads")


def autograd_grad(
    tracer: Tracer, outputs: Value, inputs: Value, grad_outputs: Value = NONE, *rest: Value, **named: Value
) -> Value:
    """`torch.autograd.grad(...)`."""
    TORCH.require("backward_class")
    if tracer.graph.is_transformed:
        raise UnsupportedCall("torch.autograd.grad under a transform of torch.func")
    given = {**dict(zip(_OPTIONS, rest, strict=False)), **named}
    options = {name: value.concrete() for name, value in given.items()}
    if not options.pop("only_inputs", True) or options.get("is_grads_batched"):
        raise UnsupportedCall("torch.autograd.grad of batched gradients, or with only_inputs=False")
    if isinstance(inputs, DictValue):
        raise UnsupportedCall("torch.autograd.grad with a dict of inputs")
    roots, wanted = (all_tensors(_items(tracer, each), "torch.autograd.grad") for each in (outputs, inputs))
    # An outside tensor with a history of its own may depend on another outside tensor, a wanted one as any other.
    outside = {each.abstract.grad_fn for each in wanted if each.real is not None}
    if outside:
        histories = {node for node in reached([root.abstract for root in roots]) if isinstance(node, _OUTSIDE)}
        if any(outside - {node} for node in histories):
            raise UnsupportedCall("torch.autograd.grad through a tensor that was computed outside of the captured code")
    _refuse_hooks(tracer)
    tangents = None
    if not grad_outputs.is_none():
        tangents = to_host(tracer, TupleValue(_items(tracer, grad_outputs)))
    args = (tuple(root.abstract for root in roots), tuple(each.abstract for each in wanted), tangents)
    return record(tracer, TARGET, args, options, evaluate(tracer, gradients, args, options))


def _items(tracer: Tracer, value: Value) -> list[Value]:
    return [value] if isinstance(value, TensorValue) else list(collect(tracer, value))


def _refuse_hooks(tracer: Tracer) -> None:
    """Hooks of tensors run in every backward that comes to them, of which the graph knows nothing."""
    if any(isinstance(effect, HookHandle) for effect in tracer.effects):
        raise UnsupportedCall("torch.autograd.grad behind Tensor.register_hook()")
    for tensor in tuple(tracer.inputs.tensors.values()):
        real = tensor.real
        if real is None or not real.requires_grad:
            continue
        if real._backward_hooks is not None:
            raise UnsupportedCall("torch.autograd.grad with hooks on a tensor from outside")
        tracer.guards.literal(tracer.places.attribute(tensor.source, "_backward_hooks"), None)


# -- torch.autograd.forward_ad: the calls between entering a dual level and leaving it are a function of the graph.
#
#     with dual_level(): calls   ->   results = custom.dual_level((captured,))
#
# The function means its calls inside of a dual level (`absint.functions`), and gives all that they compute. They are
# evaluated inside of one, so that torch's own forward mode says what has a tangent. The level has to be left before the
# graph ends.


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
    (graph,), captured = as_functions(tracer, (), (inside.nodes, results))
    function = CustomFunction(
        name=tracer.graph.name("dual_level"),
        operands=0,
        results=len(results),
        forward=graph,
        transform=Transform(kind="dual_level", arguments=0, outputs=len(results)),
    )
    tracer.graph.apply_custom(function, (), [tensor.name for tensor in captured], results, tracer.line())
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


DUAL_LEVELS: dict[Any, Callable[..., Value]] = {
    forward_ad.enter_dual_level: _enter,
    forward_ad.exit_dual_level: _leave,
    forward_ad.make_dual: _make_dual,
    forward_ad.unpack_dual: _unpack_dual,
}
