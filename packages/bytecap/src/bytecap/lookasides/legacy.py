"""Constructors from before torch 0.4, which many programs still call: `Variable(t)`, `torch.FloatTensor([1, 2])`,
`t.new(2, 3)`. The same name takes sizes or content, so that a torch.Size is not any other tuple here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Variable

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.lookasides.numpy_calls import NUMPY_CALLS
from bytecap.nodes.torch_calls import call_torch
from bytecap.objects.arrays.numpy_arrays import ArrayValue, OutsideArray
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Value
from bytecap.objects.constant import Constant
from bytecap.objects.containers.sequences import Sequence, TupleValue

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
            return _of_array(tracer, args[0], options)
        sizes = None if kwargs else _sizes(args)
        if sizes is not None:
            return call_torch(tracer, torch.empty, [sizes], options)
        if kwargs or not _is_content(args):
            raise _refusal(f"torch.{name}", (*args, *kwargs.values()))
        return call_torch(tracer, torch.tensor, list(args), options)

    return make


def _of_array(tracer: Tracer, array: Value, options: dict[str, Value]) -> Value:
    """Over the memory of the array if it has that dtype, as torch.as_tensor."""
    return NUMPY_CALLS[torch.as_tensor](tracer, array, **options)


def _new(tracer: Tracer, like: Value, *args: Value, **kwargs: Value) -> Value:
    """t.new(...): as the constructors do, with the dtype and device of `t`."""
    sizes = None if kwargs else _sizes(args)
    if sizes is not None:
        return call_torch(tracer, torch.Tensor.new_empty, [like, sizes], {})
    if kwargs or not _is_content(args):
        raise _refusal("Tensor.new", (*args, *kwargs.values()))
    return call_torch(tracer, torch.Tensor.new_tensor, [like, *args], {})


def _sizes(args: tuple[Value, ...]) -> Value | None:
    """The sizes that a legacy constructor was given (none: an empty vector); None for anything else."""
    if len(args) == 1 and args[0].python_type() is torch.Size:
        return args[0]
    if all(isinstance(arg, Constant) and type(arg.value) is int for arg in args):
        return TupleValue(list(args) or [Constant(0)])
    return None


def _is_content(args: tuple[Value, ...]) -> bool:
    return len(args) == 1 and isinstance(args[0], Sequence)


def _refusal(name: str, args: tuple[Value, ...]) -> UnsupportedCall:
    return UnsupportedCall(f"{name}() of {', '.join(arg.describe() for arg in args)}")


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
