"""Functions whose results have as many elements as a small tensor says, one that comes from outside of the frame.

What it holds while the frame is captured is assumed, and checked by the graph (`nodes.data_checks`): such
tensors are mostly constants of the program. Where it fails the frame runs plain, and after some failures the graph ends
in front of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bytecap.context_types import Tracer
from bytecap.nodes.torch_calls import call_torch, to_host
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Value
from bytecap.objects.constant import Constant


def tensor_split(input: Tensor, indices: Tensor, dim: int, known: Any) -> Any:
    """torch.tensor_split at `known`, which is what `indices` held when the program was captured."""
    if (indices != torch.tensor(known)).any():
        raise RuntimeError("the tensor is split elsewhere")
    return torch.tensor_split(input, known, dim)


def repeat_interleave(input: Tensor, repeats: Tensor, dim: Any, total: int) -> Tensor:
    """torch.repeat_interleave to `total` elements along `dim`, as many as there were when the program was captured."""
    if repeats.sum() != total:
        raise RuntimeError("there are more repetitions, or less")
    return torch.repeat_interleave(input, repeats, dim, output_size=total)


_NONE, _ZERO = Constant(None), Constant(0)
_MOST = 256


def _content(value: Value, dtypes: tuple[torch.dtype, ...]) -> Any:
    """The numbers in a small tensor from outside to which the frame has not written; None where it is none."""
    if not isinstance(value, TensorValue) or value.real is None or value.abstract.storage_record.version:
        return None
    real = value.real
    if real.dtype not in dtypes or real.device.type != "cpu" or real.numel() > _MOST:
        return None
    return real.tolist()


def _tensor_split(original: Callable[..., Any]) -> Callable[..., Value]:
    def handler(
        tracer: Tracer, tensor: Value, indices: Value | None = None, dim: Value = _ZERO, **named: Value
    ) -> Value:
        given = indices if indices is not None else named.get("tensor_indices_or_sections")
        known = None if given is None else _content(given, (torch.int64,))
        if given is None or known is None or not isinstance(tensor, TensorValue):
            return call_torch(tracer, original, [tensor, *([] if indices is None else [indices, dim])], named)
        places = tracer.objects.fresh(tuple(known) if isinstance(known, list) else known)
        python = tracer.objects.wrap(tensor_split, None)
        return python.call(tracer, [tensor, given, named.get("dim", dim), places], {})

    return handler


def _repeat_interleave(original: Callable[..., Any]) -> Callable[..., Value]:
    def handler(tracer: Tracer, *args: Value, **named: Value) -> Value:
        bound = dict(zip(("input", "repeats", "dim"), args, strict=False)) | named
        known = _content(bound.get("repeats", _NONE), (torch.int64, torch.int32))
        is_open = bound.get("output_size", _NONE).is_none() and isinstance(bound.get("input"), TensorValue)
        if known is None or not is_open or min(_flat(known), default=0) < 0:
            return call_torch(tracer, original, list(args), named)
        dim = bound.get("dim", _NONE)
        total = tracer.objects.fresh(_total(bound["input"].abstract, _flat(known), to_host(tracer, dim)))
        python = tracer.objects.wrap(repeat_interleave, None)
        return python.call(tracer, [bound["input"], bound["repeats"], dim, total], {})

    return handler


def _flat(known: Any) -> list[int]:
    return known if isinstance(known, list) else [known]


def _total(x: Any, repeats: list[int], dim: int | None) -> int:
    """How many elements repeat_interleave makes along its dimension: one number is for each of them."""
    if len(repeats) != 1:
        return sum(repeats)
    return repeats[0] * int(x.numel() if dim is None else x.shape[dim] if x.dim() else 1)


KNOWN_CONTENTS: dict[Any, Callable[..., Value]] = {
    **{original: _tensor_split(original) for original in (torch.tensor_split, torch.Tensor.tensor_split)},
    **{
        original: _repeat_interleave(original) for original in (torch.repeat_interleave, torch.Tensor.repeat_interleave)
    },
}
