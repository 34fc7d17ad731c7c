"""`nn.Parameter(...)` in captured code: the parameter is made in front of the graph, which is given it as an input.

    made  ::= new parameter of a type, stored in a local of the replacement     before the graph is called
    graph ::= ... made.data = data ...                                          where the code makes it

A leaf that gathers gradients is nothing that a graph can return; one that it is given is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from absint import AbstractTensor
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.graph.builder import tensor_type
from bytecap.nodes.torch_calls import call_torch
from bytecap.objects.arrays.inference import is_inferring
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Value
from bytecap.objects.constant import Constant
from bytecap.objects.containers.sequences import ListValue
from stagewire.capture import Local


def _parameter(tracer: Tracer, data: Value = Constant(None), requires_grad: Value = Constant(True)) -> Value:  # noqa: B008
    if is_inferring(tracer):
        raise UnsupportedCall("nn.Parameter in inference mode")
    if data.is_none():
        data = call_torch(tracer, torch.empty, [ListValue([Constant(0)])], {})
    if not isinstance(data, TensorValue):
        raise UnsupportedCall(f"nn.Parameter of a {data.describe()}")
    wants_grad = requires_grad.truth(tracer)
    dtype = data.abstract.dtype
    if wants_grad and not (dtype.is_floating_point or dtype.is_complex):
        raise tracer.raises(RuntimeError, "Only Tensors of floating point and complex dtype can require gradients")
    _refuse_shared(tracer, data)
    made = _made(tracer, data.abstract.meta, wants_grad)
    made._set_data(tracer, data)
    return made


def _refuse_shared(tracer: Tracer, data: TensorValue) -> None:
    """The parameter stands on the memory of its data, which the graph can only follow where nothing else does."""
    record = data.abstract.storage_record
    for other in tuple(tracer.inputs.tensors.values()):
        if other.abstract.storage_record is record and (other.role != "result" or other.place is not None):
            raise UnsupportedCall("nn.Parameter on the memory of a tensor from outside the frame")
        if other.abstract.storage_record is record and other.abstract.meta != data.abstract.meta:
            raise UnsupportedCall("nn.Parameter on the memory of a view")


def _made(tracer: Tracer, meta: Any, wants_grad: bool) -> TensorValue:
    abstract = AbstractTensor(meta, requires_grad=wants_grad)
    place = f".made{len(tracer.made)}"
    name = tracer.graph.add_made(tensor_type(abstract), Local(place))
    make = _maker(meta, wants_grad)
    tracer.made[place] = name, make
    abstract.storage_record.is_inference = False
    value = TensorValue(abstract, name, cls=torch.nn.Parameter)
    value.place = place
    tracer.inputs.tensors[id(abstract)] = value
    return value


def _maker(meta: Any, wants_grad: bool) -> Callable[[], torch.nn.Parameter]:
    # The replacement knows no symbols: a size that is one is fixed.
    shape, stride = [int(size) for size in meta.shape], [int(step) for step in meta.stride]

    def make() -> torch.nn.Parameter:
        data = torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)
        return torch.nn.Parameter(data, requires_grad=wants_grad)

    return make


PARAMETERS: dict[Any, Callable[..., Value]] = {torch.nn.Parameter: _parameter}
