"""torch.autograd.grad in captured code: one node, whose types come from running the engine on abstract tensors.

A gradient is captured where all of its way lies inside of the graph. The history of an outside tensor that is no leaf
is not known here: where it may lead to another of the wanted inputs, the call is refused.
"""

from __future__ import annotations

from absint.backward_checks import reached
from absint.gradients import TARGET, gradients
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.graph.builder import Outside
from bytecap.nodes.bodies import all_tensors
from bytecap.nodes.torch_calls import evaluate, record, to_host
from bytecap.objects.arrays.tensor_hooks import HookHandle
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Value, collect
from bytecap.objects.constant import NONE
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import TupleValue
from bytecap.torch_capabilities import TORCH

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
    _refuse_outside_history(tracer, roots, wanted)
    _refuse_hooks(tracer)
    tangents = None
    if not grad_outputs.is_none():
        tangents = to_host(tracer, TupleValue(_items(tracer, grad_outputs)))
    args = (tuple(root.abstract for root in roots), tuple(each.abstract for each in wanted), tangents)
    return record(tracer, TARGET, args, options, evaluate(tracer, gradients, args, options))


def _items(tracer: Tracer, value: Value) -> list[Value]:
    return [value] if isinstance(value, TensorValue) else list(collect(tracer, value))


def _refuse_outside_history(tracer: Tracer, roots: list[TensorValue], wanted: list[TensorValue]) -> None:
    """An outside tensor with a history of its own may depend on another outside tensor."""
    if all(each.real is None for each in wanted):
        return
    known = {each.abstract.grad_fn for each in wanted}
    if any(isinstance(node, _OUTSIDE) for node in reached([root.abstract for root in roots]) - known):
        raise UnsupportedCall("torch.autograd.grad through a tensor that was computed outside of the captured code")


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
        source = tracer.places.attribute(tensor.source, "_backward_hooks")
        if source is not None:
            tracer.guards.literal(source, None)
