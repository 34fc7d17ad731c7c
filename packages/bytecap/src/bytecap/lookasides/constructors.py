"""Constructors of tensors: nn.Parameter, and those from before torch 0.4, which many programs call: `Variable(t)`,
`torch.FloatTensor([1, 2])`, `t.new(2, 3)`. These take sizes or content: a torch.Size is not any other tuple here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Variable

from absint import AbstractTensor
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.graph.builder import Made, tensor_type
from bytecap.lookasides.numpy_calls import NUMPY_CALLS
from bytecap.nodes.torch_calls import call_torch
from bytecap.objects.arrays.inference import is_inferring
from bytecap.objects.arrays.numpy_arrays import ArrayValue, OutsideArray
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Constant, Value
from bytecap.objects.containers.sequences import ListValue, Sequence, TupleValue

# The classes of torch that make tensors of one dtype; torch.Tensor makes those of the default dtype.
_DTYPES: dict[str, torch.dtype] = {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16, "LongTensor": torch.int64, "IntTensor": torch.int32, "ShortTensor": torch.int16,
    "CharTensor": torch.int8, "ByteTensor": torch.uint8, "BoolTensor": torch.bool,
}  # fmt: skip


def _variable(tracer: Tracer, data: Value, requires_grad: Value | None = None) -> Value:
    """Variable(t, requires_grad=False): t without its history, over the same memory."""
    if not isinstance(data, TensorValue):
        raise UnsupportedCall(f"Variable() of a {data.describe()}")
    made = call_torch(tracer, torch.Tensor.detach, [data], {})
    if requires_grad is not None and requires_grad.truth(tracer):
        call_torch(tracer, torch.Tensor.requires_grad_, [made], {})
    return made


def _maker(name: str, dtype: torch.dtype | None) -> Callable[..., Value]:
    """A legacy constructor: sizes make memory with any content, a sequence is the content."""

    def make(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
        options: dict[str, Value] = {"dtype": Constant(dtype or torch.get_default_dtype())}
        if len(args) == 1 and not kwargs and isinstance(args[0], (ArrayValue, OutsideArray)):
            # Over the memory of the array if it has that dtype.
            return NUMPY_CALLS[torch.as_tensor](tracer, args[0], **options)
        return _empty_or_filled(tracer, (torch.empty, torch.tensor), [], args, kwargs, options, f"torch.{name}")

    return make


def _new(tracer: Tracer, like: Value, *args: Value, **kwargs: Value) -> Value:
    """t.new(...): as the constructors do, with the dtype and device of `t`."""
    makers = torch.Tensor.new_empty, torch.Tensor.new_tensor
    return _empty_or_filled(tracer, makers, [like], args, kwargs, {}, "Tensor.new")


def _empty_or_filled(
    tracer: Tracer, makers: tuple[Any, Any], like: list[Value], args: tuple[Value, ...], kwargs: dict[str, Value],
    options: dict[str, Value], name: str,
) -> Value:  # fmt: skip
    """What the first maker gives for sizes, or the second for content."""
    is_size = len(args) == 1 and args[0].python_type() is torch.Size
    if not kwargs and (is_size or all(isinstance(arg, Constant) and type(arg.value) is int for arg in args)):
        sizes = args[0] if is_size else TupleValue(list(args) or [Constant(0)])  # none: an empty vector
        return call_torch(tracer, makers[0], [*like, sizes], options)
    if kwargs or len(args) != 1 or not isinstance(args[0], Sequence):
        raise UnsupportedCall(f"{name}() of {', '.join(arg.describe() for arg in (*args, *kwargs.values()))}")
    return call_torch(tracer, makers[1], [*like, *args], options)


def _new_tensor(tracer: Tracer, like: Value, data: Value, **options: Value) -> Value:
    """t.new_tensor(data, dtype=None, device=None, requires_grad=False) of an array: torch.tensor as `t` is."""
    if not isinstance(data, (ArrayValue, OutsideArray)):
        return call_torch(tracer, torch.Tensor.new_tensor, [like, data], options)
    given = {name: value for name, value in options.items() if not value.is_none()}
    own = {name: like.get_attribute(tracer, name) for name in ("dtype", "device")}
    return NUMPY_CALLS[torch.tensor](tracer, data, **{**own, **given})


LEGACY: dict[Any, Callable[..., Value]] = {
    Variable: _variable,
    torch.Tensor.new: _new,
    torch.Tensor.new_tensor: _new_tensor,
    torch.Tensor: _maker("Tensor", None),
    **{getattr(torch, name): _maker(name, dtype) for name, dtype in _DTYPES.items()},
}


# -- `nn.Parameter(...)` in captured code: the parameter is made in front of the graph, which is given it as an input.
#
#     made  ::= new parameter of a type, stored in a local of the replacement     before the graph is called
#     graph ::= ... made.data = data ...                                          where the code makes it
#
# A leaf that gathers gradients is nothing that a graph can return; one that it is given is.


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
    name = tracer.graph.add_made(tracer.graph.name("parameter"), tensor_type(abstract), place, "parameter")
    # The replacement knows no symbols: a size that is one is fixed.
    shape, stride = [int(size) for size in meta.shape], [int(step) for step in meta.stride]

    def make() -> torch.nn.Parameter:
        data = torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)
        return torch.nn.Parameter(data, requires_grad=wants_grad)

    tracer.made[place] = Made(make, example=make)
    abstract.storage_record.is_inference = False
    value = TensorValue(abstract, name, cls=torch.nn.Parameter)
    value.place = place
    tracer.inputs.tensors[id(abstract)] = value
    return value


PARAMETERS: dict[Any, Callable[..., Value]] = {torch.nn.Parameter: _parameter}
