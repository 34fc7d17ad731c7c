"""Small tensors whose numbers follow from the program alone: `torch.linspace(0, 0.1, 3)`, `torch.tensor([2, 3]).sum()`.

Calls of functions without hidden state, on numbers and on such tensors, are also done for real while the frame is
captured, so that `.item()`, `.tolist()` and branches on the result are known. A size that becomes such a tensor
(`torch.div(x.shape[0], 2, rounding_mode="floor")`) is fixed. Comparisons of random numbers with what lies outside of
their bounds are known as well: `torch.rand([]) < 0.0`, layers that are never dropped.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from absint import AbstractTensor, DataDependentError
from absint.meta import CPU, from_tensor, numel
from absint.symbolic.size import is_unknown

if TYPE_CHECKING:
    from bytecap.tracer import Tracer

_MOST = 256
_PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device))
_MAKERS = frozenset((torch.arange, torch.linspace, torch.zeros, torch.ones, torch.full, torch.eye, torch.scalar_tensor))
_RANDOM = frozenset((torch.rand, torch.rand_like))
_COMPARISONS = frozenset(
    getattr(of, name) for of in (operator, torch, torch.Tensor) for name in ("lt", "le", "gt", "ge")
)
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
        *_COMPARISONS,
    )
)


def note_content(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, tracer: Tracer) -> None:
    """Keep the numbers of a result that is known now."""
    if not (function in _MAKERS or function in _PURE or function in _RANDOM) or "out" in kwargs:
        return
    if type(result) is not AbstractTensor or not _is_small(result) or result.storage_record.constant is not None:
        return
    if function in _RANDOM:
        result.storage_record.bounds = (0.0, 1.0)
        return
    if function in _COMPARISONS and (answer := _compared(function, args)) is not None:
        result.storage_record.constant = torch.full(result.meta.shape, answer)
        return
    if function in _PURE and not any(isinstance(leaf, AbstractTensor) for leaf in _leaves(args)):
        args = tuple(int(arg) if isinstance(arg, torch.SymInt) and not is_unknown(arg) else arg for arg in args)
    try:
        given = [_real(tracer, arg) for arg in args]
        named = {name: _real(tracer, value) for name, value in kwargs.items()}
    except DataDependentError:
        return
    if function in _MAKERS and any(isinstance(leaf, torch.Tensor) for leaf in _leaves([*given, *named.values()])):
        return
    with torch.no_grad():
        real = function(*given, **named)
    if from_tensor(real) == result.meta:
        result.storage_record.constant = real


def with_numbers(tracer: Tracer, given: Any) -> Any:
    """The arguments of a call; a number stands for each tensor that the call took as one (`x.view(2, tensor)`)."""
    if type(given) in (tuple, list, torch.Size):
        return type(given)([with_numbers(tracer, item) for item in given])
    if isinstance(given, AbstractTensor) and any(given is tensor for tensor in tracer.mode.read):
        return tracer.mode.content_of(given).item()
    return given


def _compared(function: Any, args: tuple[Any, ...]) -> bool | None:
    """What a comparison of bounded numbers with a number always gives, if one thing."""
    if len(args) != 2 or not any(type(arg) in (int, float) for arg in args):
        return None
    bounds = next((arg.storage_record.bounds for arg in args if type(arg) is AbstractTensor), None)
    if bounds is None:
        return None
    compare = getattr(operator, function.__name__)
    answers = {compare(*(arg if type(arg) in (int, float) else bound for arg in args)) for bound in bounds}
    return answers.pop() if len(answers) == 1 else None


def _is_small(tensor: AbstractTensor) -> bool:
    meta = tensor.meta
    return meta.is_static and meta.device == CPU and numel(meta.shape) <= _MOST and not tensor.requires_grad


def _real(tracer: Tracer, value: Any) -> Any:
    """The argument itself; `DataDependentError` where it is not known."""
    if type(value) in _PLAIN:
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
