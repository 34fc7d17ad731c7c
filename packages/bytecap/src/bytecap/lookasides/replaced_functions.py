"""Python functions of libraries that are evaluated in another form.

transformers collects hidden states and attentions through hooks, which find their collector in a context variable; in
compiled code in an attribute instead, that the innermost model empties as it ends. What the models round it collect
is lost then (GIT: its vision model runs inside of its text model). Evaluated is what runs elsewhere.

functools remembers in weak references, from CPython 3.13 on, which object was given which method of single dispatch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import update_wrapper
from typing import Any


def set_collector(self: Any, value: Any) -> Any:
    """transformers.utils.output_capturing.CompileableContextVar.set"""
    return self.context_var.set(value)


def method_by_class(self: Any, obj: Any, cls: Any = None) -> Any:
    """functools.singledispatchmethod.__get__"""
    dispatch = self.dispatcher.dispatch
    name = getattr(self.func, "__name__", "singledispatchmethod method")

    def method(*args: Any, **kwargs: Any) -> Any:
        if not args:
            raise TypeError(f"{name} requires at least 1 positional argument")
        return dispatch(args[0].__class__).__get__(obj, cls)(*args, **kwargs)

    method.__isabstractmethod__ = self.__isabstractmethod__  # type: ignore[attr-defined]
    method.register = self.register  # type: ignore[attr-defined]
    update_wrapper(method, self.func)
    return method


_COLLECTOR = ("transformers.utils.output_capturing", "CompileableContextVar")

STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    (_COLLECTOR[0], f"{_COLLECTOR[1]}.set"): set_collector,
}
"""(module, qualified name) -> the function that is evaluated."""

if sys.version_info >= (3, 13):
    STAND_INS["functools", "singledispatchmethod.__get__"] = method_by_class
