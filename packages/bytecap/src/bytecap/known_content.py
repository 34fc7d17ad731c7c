"""Small tensors whose numbers follow from the program alone: `torch.linspace(0, 0.1, 3)`, `torch.tensor([2, 3]).sum()`.

Calls of functions without hidden state, on numbers and on such tensors, are also done for real while the frame is
captured, so that `.item()`, `.tolist()` and branches on the result are known.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from absint import AbstractTensor, DataDependentError
from absint.meta import CPU, from_tensor, numel

if TYPE_CHECKING:
    from bytecap.tracer import Tracer

_MOST = 256
_NUMBERS = frozenset((int, float, bool, type(None), torch.dtype, torch.device))
_MAKERS = frozenset((torch.arange, torch.linspace, torch.zeros, torch.ones, torch.full, torch.eye, torch.scalar_tensor))
_METHODS = (
    "add", "sub", "mul", "div", "neg", "abs", "sum", "prod", "max", "min", "mean", "cumsum", "any", "all", "floor",
    "ceil", "round", "sqrt", "exp", "log", "clamp", "flip", "clone",
)  # fmt: skip
_OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "abs", "eq", "ne", "lt", "le", "gt", "ge",
)  # fmt: skip
_PURE: frozenset[Any] = frozenset(
    (
        *(getattr(operator, name) for name in _OPERATORS),
        *(getattr(torch.Tensor, name) for name in (*_METHODS, "long", "int", "float", "double", "bool", "to", "type")),
        *(getattr(torch, name) for name in (*_METHODS, "cat", "stack")),
    )
)


def note_content(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, tracer: Tracer) -> None:
    """Keep the numbers of a result that is known now."""
    if (function not in _MAKERS and function not in _PURE) or "out" in kwargs:
        return
    if type(result) is not AbstractTensor or not _is_small(result) or result.storage_record.constant is not None:
        return
    try:
        given = [_real(tracer, arg) for arg in args]
        named = {name: _real(tracer, value) for name, value in kwargs.items()}
    except DataDependentError:
        return
    if (function in _PURE) == any(isinstance(leaf, torch.Tensor) for leaf in _leaves([*given, *named.values()])):
        with torch.no_grad():
            real = function(*given, **named)
        if from_tensor(real) == result.meta:
            result.storage_record.constant = real


def _is_small(tensor: AbstractTensor) -> bool:
    meta = tensor.meta
    return meta.is_static and meta.device == CPU and numel(meta.shape) <= _MOST and not tensor.requires_grad


def _real(tracer: Tracer, value: Any) -> Any:
    """The argument itself; `DataDependentError` where it is not known."""
    if type(value) in _NUMBERS:
        return value
    if type(value) in (tuple, list, torch.Size):
        return type(value)([_real(tracer, item) for item in value])
    if type(value) is AbstractTensor and _is_small(value):
        return tracer.mode.content_of(value)
    raise DataDependentError("a number that is not known")


def _leaves(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _leaves(value)
        else:
            yield value
