"""Decompositions computing on real tensors, so that each can be compared with ATen directly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from primops.aten import overload, tensor_type
from primops.builder import Builder, Device, DType, Value, type_of
from primops.decompose import decompose_call
from primops.decompositions.operands import Function
from primops.errors import DecompositionFault
from primops.meanings import DTYPES, MEANINGS, NAMES
from stagewire.types import TensorType, ValueType
from stagewire.vocabulary import Op


class ComputeBuilder(Builder):
    """Executes prims by their reference meaning and checks each against its constraints and its type rule."""

    def __init__(self, results: tuple[ValueType, ...]) -> None:
        self.results = results

    def emit(self, op: Op, arguments: tuple[Any, ...], types: tuple[TensorType, ...]) -> tuple[Value, ...]:
        refused = op.refusal(tuple(map(type_of, arguments)))
        if refused is not None:
            raise DecompositionFault("[{}] {}".format(*refused))
        made = MEANINGS[op.name](*(_payload(a) for a in arguments))
        tensors = made if isinstance(made, tuple) else (made,)
        if op.creates:
            tensors = tuple(t.to(self.out.device) for t in tensors)
        for tensor, stated in zip(tensors, types, strict=True):
            if tuple(tensor.shape) != stated.shape or NAMES[tensor.dtype] != stated.dtype:
                raise AssertionError(f"{op.name}: the rule says {stated}, the meaning gives {tensor_type(tensor)}")
        return tuple(Value(tensor_type(t), t) for t in tensors)

    def extern(
        self, target: str, args: Sequence[Any], types: tuple[ValueType, ...], kwargs: dict[str, Any] | None = None
    ) -> tuple[Value | None, ...]:
        made = overload(target)(*map(_real, args), **{k: _real(v) for k, v in (kwargs or {}).items()})
        tensors = made if isinstance(made, (tuple, list)) else (made,)
        return tuple(None if t is None else Value(tensor_type(t), t) for t in tensors)


def _payload(argument: Any) -> Any:
    if type(argument) is Value:
        return argument.payload
    return tuple(map(_payload, argument)) if isinstance(argument, tuple) else argument


def _real(argument: Any) -> Any:
    if isinstance(argument, DType):
        return DTYPES[argument.name]
    if isinstance(argument, Device):
        return torch.device(argument.name)
    if type(argument) is Value:
        return argument.payload
    return [_real(item) for item in argument] if isinstance(argument, tuple) else argument


def abstract(argument: Any) -> Any:
    """A torch argument as a decomposition sees it."""
    if isinstance(argument, torch.Tensor):
        return Value(tensor_type(argument), argument)
    if isinstance(argument, (tuple, list)):
        return tuple(map(abstract, argument))
    if isinstance(argument, torch.dtype):
        return DType(NAMES[argument])
    if isinstance(argument, torch.device):
        return Device(str(argument))
    return argument


def compute(
    function: Function, target: str, args: Sequence[Any], kwargs: Mapping[str, Any], results: tuple[ValueType, ...]
) -> tuple[torch.Tensor | None, ...]:
    """The results of a decomposition on real tensors; `results` are the types that ATen gives."""
    p = ComputeBuilder(results)
    values = decompose_call(
        p, function, target, tuple(map(abstract, args)), {k: abstract(v) for k, v in kwargs.items()}
    )
    return tuple(None if v is None else v.payload for v in values)
