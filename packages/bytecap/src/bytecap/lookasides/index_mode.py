"""The one torch function mode that captured code may enter: indices that are tensors stay tensors (`x[i, j]`).

Masks of attention are written as functions of places, `mask(batch, head, query, key)`, and mapped over the places by
torch.vmap, which cannot look into an index. torch ships a mode for it, `TransformGetItemToIndex`: a subscript whose
parts are all tensors or ints is `aten.index`, with the ints as tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.nodes.torch_calls import call_torch
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Value
from bytecap.objects.constant import Constant
from bytecap.objects.containers.sequences import ListValue, Sequence
from bytecap.semantics.effects import CallEffect
from bytecap.torch_capabilities import TORCH

_MODE = ("torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex")
_PUSH, _POP = TORCH.push_function_mode, TORCH.pop_function_mode


def _enter(tracer: Tracer, mode: Value) -> Value:
    cls = mode.python_type()
    if (cls.__module__, cls.__qualname__) != _MODE:
        raise UnsupportedCall(f"entering the torch function mode {cls.__qualname__} in captured code")
    tracer.index_modes.append(mode)
    return Constant(None)


def _leave(tracer: Tracer) -> Value:
    if not tracer.index_modes:
        raise UnsupportedCall("leaving a torch function mode that was entered outside")
    return tracer.index_modes.pop()


def leave_entered(tracer: Tracer) -> None:
    """The capture ends inside of such modes: they are entered for real."""
    tracer.effects.extend([CallEffect(_PUSH, [mode], {}) for mode in tracer.index_modes])


def index_by_tensors(tracer: Tracer, tensor: Value, key: Value) -> Value | None:
    """`tensor[key]` inside of the mode; None outside, and for a key that it leaves alone."""
    if not tracer.index_modes:
        return None
    parts = _parts(tracer, key)
    if not all(isinstance(part, TensorValue) or _is_int(part) for part in parts):
        return None
    options = {"dtype": Constant(torch.int64), "device": tensor.get_attribute(tracer, "device")}
    places = [
        part if isinstance(part, TensorValue) else call_torch(tracer, torch.tensor, [part], dict(options))
        for part in parts
    ]
    return call_torch(tracer, torch.ops.aten.index.Tensor, [tensor, ListValue(places)], {})


def _parts(tracer: Tracer, key: Value) -> list[Value]:
    if not isinstance(key, Sequence):
        return [key]
    return [part for item in key.values(tracer) for part in _parts(tracer, item)]


def _is_int(part: Value) -> bool:
    return isinstance(part, Constant) and issubclass(part.python_type(), int)


INDEX_MODE: dict[Any, Callable[..., Value]] = {_PUSH: _enter, _POP: _leave}
