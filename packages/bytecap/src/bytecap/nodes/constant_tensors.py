"""Small tensors whose numbers follow from the program alone: `torch.linspace(0, 0.1, 3)`, `torch.tensor([2, 3]).sum()`.

Calls of functions without hidden state, on numbers and on such tensors, are also done for real while the frame is
captured, so that `.item()`, `.tolist()` and branches on the result are known. A size that becomes such a tensor
(`torch.div(x.shape[0], 2, rounding_mode="floor")`) is fixed. Comparisons of random numbers with what lies outside of
their bounds are known as well: `torch.rand([]) < 0.0`, layers that are never dropped.

A whole number in a buffer on the CPU (a padding, a flag) is deferred, and so is what is computed of it and of plain
numbers: it becomes known when the program asks for it, and is guarded then.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

import torch

from absint import AbstractTensor, DataDependentError, Meta
from absint.meta import CPU, from_tensor, leaves, map_leaves
from absint.symbolic.size import is_unbacked
from absint.tensor import Storage, tensors_in
from bytecap.context_types import Tracer
from bytecap.objects.arrays.tensors import TensorValue
from stagewire.capture import Source
from stagewire.types import numel

_MOST = 256
_PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device))
_WHOLE = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool))
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
    given = list(leaves((args, kwargs)))
    tensors = tensors_in(given)
    if not all(_is_small(tensor) for tensor in tensors) or (tensors and function in _MAKERS):
        return
    if any(tensor.storage_record.is_deferred for tensor in tensors):
        if any(isinstance(leaf, torch.SymInt) for leaf in given):
            return  # a capture of its own for each size is worse than a graph that ends
        # Of this moment: the tensors may be written before somebody asks.
        now, named = map_leaves((args, kwargs), _as_it_is)
        result.storage_record.deferred = cache(lambda: _computed(tracer, function, now, named, result.meta))
        return
    try:
        result.storage_record.constant = _computed(
            tracer, function, args, kwargs, result.meta, fixes=function in _PURE and not tensors
        )
    except DataDependentError:
        return


def note_buffer(value: TensorValue, tracer: Tracer) -> None:
    """Defer the number in a buffer, if it is all that is in its memory and not known to change from call to call."""
    real, record = value.real, value.abstract.storage_record
    place = tracer.places.reading(torch.Tensor.item, value.source)
    if real is None or place is None or place in tracer.changing or record.version or not _is_small(value.abstract):
        return
    if real.dtype not in _WHOLE or real.numel() != 1 or real.untyped_storage().nbytes() != real.itemsize:
        return

    def ask() -> torch.Tensor:
        tracer.guards.literal(place, real.item())
        tracer.numbers_in_buffers[place] = value.abstract
        return real.detach().clone()

    record.deferred = ask


def counted_buffers(tracer: Tracer) -> frozenset[Source]:
    """The numbers in buffers that the graph writes after the program asked for them."""
    asked = tracer.numbers_in_buffers.items()
    return frozenset(place for place, tensor in asked if tensor.storage_record.version)


def with_numbers(tracer: Tracer, given: Any) -> Any:
    """The arguments of a call; a number stands for each tensor that the call took as one (`x.view(2, tensor)`)."""

    def number(leaf: Any) -> Any:
        is_read = isinstance(leaf, AbstractTensor) and any(leaf is tensor for tensor in tracer.mode.read)
        return tracer.mode.content_of(leaf).item() if is_read else leaf

    return map_leaves(given, number)


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


def _computed(
    tracer: Tracer, function: Any, args: Any, kwargs: dict[str, Any], meta: Meta, *, fixes: bool = False
) -> torch.Tensor:
    """What the call gives for real; `DataDependentError` where that is not known. fixes: whether sizes may be fixed."""
    given, named = map_leaves((args, kwargs), lambda leaf: _real(tracer, leaf, fixes))
    with torch.no_grad():
        real: torch.Tensor = function(*given, **named)
    if from_tensor(real) != meta:
        raise DataDependentError("a number of another type")
    return real


def _as_it_is(given: Any) -> Any:
    """An argument that no write reaches any more."""
    if not isinstance(given, AbstractTensor):
        return given
    storage = Storage(given.storage_record.constant)
    storage.deferred = given.storage_record.deferred
    return AbstractTensor(given.meta, storage)


def _real(tracer: Tracer, value: Any, fixes: bool) -> Any:
    """The argument itself; `DataDependentError` where it is not known."""
    if type(value) in _PLAIN:
        return value
    if fixes and isinstance(value, torch.SymInt) and not is_unbacked(value):
        return int(value)
    if type(value) is AbstractTensor and _is_small(value):
        return tracer.mode.content_of(value)
    raise DataDependentError("a number that is not known")
