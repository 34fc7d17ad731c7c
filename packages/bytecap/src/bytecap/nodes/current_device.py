"""`device="cuda"`: the GPU that is current when the call is made, which `torch.cuda.set_device` and
`with torch.cuda.device(1)` change between calls of one function.

A captured call names the GPU by its index, under the guard that the same one is current.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bytecap.torch_capabilities import TORCH

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer

_GET = TORCH.current_gpu


def with_index(
    tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a torch call, GPUs without index being the current one."""
    if not torch.cuda.is_available():
        return args, kwargs
    name = getattr(function, "__name__", "")
    if name == "cuda" and len(args) == 1 and kwargs.get("device") is None:
        return args, {**kwargs, "device": _current(tracer)}
    if name in ("to", "cuda") and len(args) > 1 and _is_unnamed(args[1]):
        args = (args[0], _current(tracer), *args[2:])
    if _is_unnamed(kwargs.get("device")):
        kwargs = {**kwargs, "device": _current(tracer)}
    return args, kwargs


def _is_unnamed(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda" and device.index is None
    return isinstance(device, str) and device == "cuda"


def _current(tracer: Tracer) -> torch.device:
    index = _GET()
    tracer.guards.reading(_GET, (), index)
    return torch.device("cuda", index)
