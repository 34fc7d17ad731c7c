"""Functions of torch that are evaluated as Python where their arguments fit: combinations, resize_, a loss.

What torch refuses, and what it warns of, is left to torch: the call is then a node like others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bytecap.context_types import Tracer
from bytecap.nodes.torch_calls import call_torch, to_host
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Value
from bytecap.objects.constant import NONE, Constant
from bytecap.objects.dispatch import evaluated

_MOST_CHOICES = 1 << 16
_TWO, _FALSE = Constant(2), Constant(False)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """torch.combinations: which elements go together follows from how many there are, a constant of the graph."""
    if r == 0:
        return input.new_empty(0)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(choose(range(input.shape[0]), r))
    places = torch.tensor(rows, dtype=torch.int64, device=input.device).reshape(len(rows), r)
    return input[places]


def _combinations(tracer: Tracer, input: Value, r: Value = _TWO, with_replacement: Value = _FALSE) -> Value:
    x, r_ = getattr(input, "abstract", None), r.concrete()
    if x is None or x.dim() != 1 or type(r_) is not int or r_ < 0 or x.numel() ** max(r_, 1) > _MOST_CHOICES:
        return call_torch(tracer, torch.combinations, [input, r, with_replacement], {})
    python = tracer.objects.wrap(combinations, None)
    return python.call(tracer, [input, r, with_replacement], {})


def _resize(tracer: Tracer, tensor: Value, *sizes: Value, memory_format: Value = NONE) -> Value:
    """resize_ to no more elements than there are: another look at the same memory."""
    given = [to_host(tracer, size) for size in sizes]
    shape = tuple(given[0]) if len(given) == 1 and not isinstance(given[0], int) else tuple(given)
    if not isinstance(tensor, TensorValue) or not memory_format.is_none():
        return _resize_by_torch(tracer, tensor, sizes, memory_format)
    return _resized(tracer, tensor, shape) or _resize_by_torch(tracer, tensor, sizes, memory_format)


def _resize_by_torch(tracer: Tracer, tensor: Value, sizes: Any, memory_format: Value) -> Value:
    named = {} if memory_format.is_none() else {"memory_format": memory_format}
    return call_torch(tracer, torch.Tensor.resize_, [tensor, *sizes], named)


def _resize_as(tracer: Tracer, tensor: Value, other: Value, memory_format: Value = NONE) -> Value:
    if isinstance(tensor, TensorValue) and isinstance(other, TensorValue) and memory_format.is_none():
        made = _resized(tracer, tensor, tuple(other.abstract.shape))
        if made is not None:
            return made
    named = {} if memory_format.is_none() else {"memory_format": memory_format}
    return call_torch(tracer, torch.Tensor.resize_as_, [tensor, other], named)


def _resized(tracer: Tracer, tensor: TensorValue, shape: tuple[int, ...]) -> Value | None:
    """The tensor after resize_, or None where its memory would change."""
    x = tensor.abstract
    count = 1
    for size in shape:
        count *= size
    if x.requires_grad or not x.is_contiguous() or count > x.numel() or any(size < 0 for size in shape):
        return None
    if tuple(x.shape) == shape:
        return tensor
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(shape[dim + 1], 1)
    sizes = [tracer.objects.fresh(shape), tracer.objects.fresh(tuple(strides))]
    return tensor.call_method(tracer, "as_strided_", sizes, {})


CHECKED_FUNCTIONS: dict[Any, Callable[..., Value]] = {
    torch.combinations: _combinations,
    F.gaussian_nll_loss: evaluated(F.gaussian_nll_loss),  # whose checks of data are branches that raise
    torch.Tensor.resize_: _resize,
    torch.Tensor.resize_as_: _resize_as,
    torch.resize_as_: _resize_as,
}
