"""Which frame a compiled callable is captured from.

A function or bound method is captured from its own frame. Anything else that can be called (an nn.Module, a
functools.partial, an object with `__call__`) gets a function of its own that calls it, so that what surrounds
`forward` (hooks, `__call__` overrides) is captured with it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any

from bytecap.hook import Dispatcher


def root_of(target: Callable[..., Any]) -> tuple[Callable[..., Any], CodeType]:
    """The callable to run for `target`, and the code whose frames are captured.

    >>> def f(x): return x
    >>> root_of(f)[1] is f.__code__
    True
    """
    while isinstance(target, Dispatcher):
        target = target.__wrapped__
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
    body = _body_code(cls)
    code = call.__code__.replace(
        co_name=cls.__name__,
        co_qualname=cls.__qualname__,
        co_filename=call.__code__.co_filename if body is None else body.co_filename,
        co_firstlineno=call.__code__.co_firstlineno if body is None else body.co_firstlineno,
    )
    return FunctionType(code, call.__globals__, cls.__name__, None, call.__closure__)


def _body_code(cls: type) -> CodeType | None:
    """The code of the method that does the work, for the place that messages name."""
    for name in ("forward", "__call__"):
        function = getattr(cls, name, None)
        if isinstance(function, FunctionType):
            return function.__code__
    return None
