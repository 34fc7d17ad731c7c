"""What torch.optim calls: its numbers are 0-dim tensors in captured code, where plain code reads them.

A step count travels as float64, so that what is computed from it rounds as Python's floats do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.nodes.torch_calls import call_torch
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Constant, Value
from bytecap.objects.dispatch import inlined
from bytecap.semantics.operations import binary
from bytecap.torch_capabilities import TORCH

ONE = Constant(1)
_WITH_FLOAT64 = frozenset({"cpu", "cuda"})


def _get_value(tracer: Tracer, x: Value) -> Value:
    is_number = isinstance(x, TensorValue) and not x.abstract.dim() and x.abstract.dtype == torch.float32
    if is_number and x.abstract.device.type in _WITH_FLOAT64:  # type: ignore[attr-defined]
        return x.call_method(tracer, "double", [], {})
    return x


def _scaled_quotient(method: Callable[..., Any], symbol: str) -> Callable[..., Value]:
    """addcdiv, addcmul: `value` may be a 0-dim tensor, which torch would read."""

    def call(tracer: Tracer, self: Value, first: Value, second: Value, *, value: Value = ONE, **more: Value) -> Value:
        if not isinstance(value, TensorValue):
            return call_torch(tracer, method, [self, first, second], {"value": value, **more})
        term = binary(tracer, "*", binary(tracer, symbol, first, second), value)
        return self.call_method(tracer, "add_" if method.__name__.endswith("_") else "add", [term], more)

    return call


def _scaled_sum(method: Callable[..., Any]) -> Callable[..., Value]:
    """add, sub: `alpha` may be a 0-dim tensor."""

    def call(tracer: Tracer, self: Value, other: Value, *, alpha: Value = ONE, **more: Value) -> Value:
        if not isinstance(alpha, TensorValue):
            return call_torch(tracer, method, [self, other], more if alpha is ONE else {"alpha": alpha, **more})
        return call_torch(tracer, method, [self, binary(tracer, "*", other, alpha)], more)

    return call


def group_tensors(lists: Any, with_indices: bool = False) -> Any:
    """What multi-tensor code is given: the lists, split by device and dtype of the first one's tensors."""
    groups: dict[Any, list[int]] = {}
    for at, tensor in enumerate(lists[0]):
        groups.setdefault((tensor.device, tensor.dtype), []).append(at)
    return {
        key: ([[column[at] for at in places] if column else [] for column in lists], places if with_indices else [])
        for key, places in groups.items()
    }


def _fused(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    """One kernel for a whole step, which writes lists of tensors: there is nothing to fuse with it."""
    raise UnsupportedCall("a fused optimizer step")


_TENSOR = torch.Tensor
OPTIMIZERS: dict[Any, Callable[..., Value]] = {
    TORCH.value_of_step: _get_value,
    TORCH.group_tensors: inlined(group_tensors),
    **{getattr(torch, name): _fused for name in dir(torch) if name.startswith("_fused_ad") or name == "_fused_sgd_"},
    **{method: _scaled_quotient(method, "/") for method in (_TENSOR.addcdiv, _TENSOR.addcdiv_, torch.addcdiv)},
    **{method: _scaled_quotient(method, "*") for method in (_TENSOR.addcmul, _TENSOR.addcmul_, torch.addcmul)},
    **{method: _scaled_sum(method) for method in (_TENSOR.add_, _TENSOR.sub_)},
}
