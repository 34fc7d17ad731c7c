"""ATen by name: the overload of a target, arguments from graph data, types of real tensors, layouts restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from primops.errors import InterpretFault
from primops.meanings import DTYPES, NAMES
from primops.torch_capabilities import TORCH
from stagewire.calls import opens_files
from stagewire.expr import Expr, evaluate
from stagewire.graph import (
    Arg,
    Complex,
    DeviceArg,
    Dict,
    DTypeArg,
    Ellipsis,
    LayoutArg,
    List,
    MemoryFormatArg,
    Node,
    NonFinite,
    Ref,
    Slice,
    Tuple,
)
from stagewire.literals import literal
from stagewire.types import TensorType


def overload(target: str) -> Callable[..., Any]:
    """The operator "namespace.name.overload".

    >>> overload("aten.add.Tensor")
    <OpOverload(op='aten.add', overload='Tensor')>
    """
    parts = target.split(".")
    if len(parts) != 3:
        raise InterpretFault(f"{target!r} is no namespace.name.overload")
    if opens_files(target):
        raise InterpretFault(f"{target} opens files, which a document may not")
    found: Any = torch.ops
    for part in parts:
        found = getattr(found, part, None)
    if not isinstance(found, type(torch.ops.aten.add.Tensor)):
        raise InterpretFault(f"torch has no operator {target!r}")
    return found


def operator_of(node: Node) -> Callable[..., Any]:
    """The operator of a node. oneDNN's LSTM gives the work space that the node states in grad mode alone."""
    function = overload(node.target)
    if node.target != "aten.mkldnn_rnn_layer.default" or node.results[3].type.shape == (0,):  # type: ignore[union-attr]
        return function

    def run(*args: Any, **kwargs: Any) -> Any:
        with TORCH.below_autograd(), torch.enable_grad():
            return function(*args, **kwargs)

    return run


def real_argument(arg: Arg, values: Mapping[str, Any], symbols: Mapping[str, int]) -> Any:
    """Graph data as a torch call takes it."""
    match arg:
        case Ref(name):
            return values[name]
        case List(items):
            return [real_argument(item, values, symbols) for item in items]
        case Tuple(items):
            return tuple(real_argument(item, values, symbols) for item in items)
        case Dict(items):
            return {key: real_argument(item, values, symbols) for key, item in items}
        case Slice(start, stop, step):
            return slice(*(real_argument(item, values, symbols) for item in (start, stop, step)))
        case Expr():
            return evaluate(arg, symbols)
        case DTypeArg(name):
            return DTYPES[name]
        case DeviceArg(name):
            return torch.device(name)
        case LayoutArg(name) | MemoryFormatArg(name):
            return getattr(torch, name)
        case NonFinite(text):
            return float(text)
        case Complex(real, imag):
            return complex(real_argument(real, values, symbols), real_argument(imag, values, symbols))
        case Ellipsis():
            return ...
        case None | bool() | int() | float() | str():
            return arg
    raise InterpretFault(f"{type(arg).__name__} has no value outside of its process")


def argument_of(value: Any, reference: Callable[[torch.Tensor], Arg]) -> Arg:
    """A torch call's argument as graph data, the inverse of `real_argument`; `reference` names the tensors."""
    match value:
        case torch.Tensor():
            return reference(value)
        case tuple() | list():
            return List(tuple([argument_of(item, reference) for item in value]))
        case torch.dtype():
            return DTypeArg(NAMES[value])
        case torch.device():
            return DeviceArg(str(value))
        case torch.layout():
            return LayoutArg(str(value).removeprefix("torch."))
        case torch.memory_format():
            return MemoryFormatArg(str(value).removeprefix("torch."))
        case float():
            return literal(value)
        case complex():
            parts = [argument_of(part, reference) for part in (value.real, value.imag)]
            return Complex(*parts)  # type: ignore[arg-type]
        case None | bool() | int() | float() | str() | Ref():
            return value
    raise InterpretFault(f"a {type(value).__name__} is no argument of a graph")


def tensor_type(tensor: torch.Tensor) -> TensorType:
    """The type of a real tensor."""
    return TensorType(
        NAMES[tensor.dtype], tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), str(tensor.device),
        tensor.requires_grad,
    )  # type: ignore[arg-type]  # fmt: skip


def conform(tensor: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], device: str) -> torch.Tensor:
    """The same elements with the stated strides; a stated stride of 0 repeats one element."""
    if str(tensor.device) != device:
        tensor = tensor.to(device)
    if tensor.stride() == stride or (tensor.numel() == 0 and tensor.is_sparse is False and 0 in shape):
        return tensor
    single = tuple(1 if step == 0 and size > 1 else size for size, step in zip(shape, stride, strict=True))
    if _overlaps(single, stride):
        return tensor
    out = torch.empty_strided(single, stride, dtype=tensor.dtype, device=tensor.device)
    out.copy_(tensor[tuple(slice(0, size) for size in single)])
    return out.as_strided(shape, stride) if single != shape else out


def _overlaps(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    reach = 1
    for size, step in sorted(zip(shape, stride, strict=True), key=lambda pair: pair[1]):
        if size > 1:
            if step < reach:
                return True
            reach = (size - 1) * step + reach
    return False
