"""Which of the frames that run under a plain or broken frame are worth a capture."""

from __future__ import annotations

import types
from itertools import islice
from typing import Any

import torch

from bytecap.guards.guard_set import is_exempt
from bytecap.hook import FrameView

_TENSOR_LIKE = (torch.Tensor, torch.nn.Module)
_CONTAINERS = (list, tuple, dict)
_DEPTH = 3
_WIDTH = 20


def is_wanted(view: FrameView) -> bool:
    """Whether a frame that nobody asked for may do tensor work of the user's.

    Libraries that are taken to stay as they are, are not captured by themselves, save the `forward` of torch's own
    modules, which calls modules of the user.
    """
    code, module = view.code, view.globals.get("__name__")
    if is_exempt(module):
        return code.co_name == "forward" and str(module).startswith("torch.nn.modules.")
    if code.co_flags & 0x2 == 0 or code.co_name == "<module>":
        return False
    return _uses_torch(code, view.globals) or any(_holds_tensors(value, _DEPTH) for value in view.locals.values())


def _uses_torch(code: types.CodeType, names: dict[str, Any]) -> bool:
    return any(
        isinstance(found := names.get(name), types.ModuleType) and found.__name__.partition(".")[0] == "torch"
        for name in code.co_names
    )


def _holds_tensors(value: Any, depth: int) -> bool:
    if issubclass(type(value), _TENSOR_LIKE):  # isinstance would ask the object for its class
        return True
    if depth == 0 or type(value) not in _CONTAINERS:
        return False
    # Taken at once: another thread may change the container.
    items = list(islice(value.values() if type(value) is dict else value, _WIDTH))
    return any(_holds_tensors(item, depth - 1) for item in items)
