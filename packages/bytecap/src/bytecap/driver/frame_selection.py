"""Which frames are captured: the root of a compiled callable, and callees of a frame that runs plain or broke."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from bytecap.breaks.outline import outlined_from
from bytecap.guards.guard_set import is_exempt
from bytecap.hook import Dispatcher, FrameView


def root_of(target: Callable[..., Any]) -> tuple[Callable[..., Any], CodeType]:
    """The callable to run for `target`, and the code whose frames are captured.

    >>> def f(x): return x
    >>> root_of(f)[1] is f.__code__
    True
    """
    while isinstance(target, Dispatcher):
        target = target.__wrapped__
    target = outlined_from(target)
    if isinstance(target, FunctionType):
        return target, target.__code__
    if isinstance(target, MethodType) and isinstance(target.__func__, FunctionType):
        return target, target.__func__.__code__
    entry = _entry(target)
    return entry, entry.__code__


def _entry(self: Callable[..., Any]) -> FunctionType:
    def call(*args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)

    cls = type(self)
    # Messages name the place of the method that does the work.
    methods = (getattr(cls, name, None) for name in ("forward", "__call__"))
    body = next((method.__code__ for method in methods if isinstance(method, FunctionType)), call.__code__)
    code = call.__code__.replace(
        co_name=cls.__name__,
        co_qualname=cls.__qualname__,
        co_filename=body.co_filename,
        co_firstlineno=body.co_firstlineno,
    )
    return FunctionType(code, call.__globals__, cls.__name__, None, call.__closure__)


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
    named = [each for each in map(view.globals.get, code.co_names) if isinstance(each, ModuleType)]
    if any(module.__name__.partition(".")[0] == "torch" for module in named):
        return True
    return any(_holds_tensors(value, _DEPTH) for value in view.locals.values())


def _holds_tensors(value: Any, depth: int) -> bool:
    if issubclass(type(value), _TENSOR_LIKE):  # isinstance would ask the object for its class
        return True
    if depth == 0 or type(value) not in _CONTAINERS:
        return False
    # Taken at once: another thread may change the container.
    items = list(islice(value.values() if type(value) is dict else value, _WIDTH))
    return any(_holds_tensors(item, depth - 1) for item in items)
