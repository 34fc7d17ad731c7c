"""What users say about callables: run plain, end the graph here, take the result for a constant.

mark ::= "disabled" (it and all that it calls run plain) | "skipped" (it runs plain, what it calls may be captured)
       | "constant" (called when a frame is captured, its result is not asked for again) | "break"

A mark lies in the attributes of a function, next to those of torch.compiler, which are honoured as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeVar

from bytecap.hook import Dispatcher
from bytecap.hook import disable as disable_code

Target = TypeVar("Target")

_MARK, _REASON = "__bytecap_mark__", "__bytecap_reason__"
# torch.compiler.disable, assume_constant_result (their marks are attributes: nothing of torch's compiler is loaded).
_OF_TORCH = (("_torchdynamo_disable", "disabled"), ("_dynamo_marked_constant", "constant"))
_BREAKS = frozenset({("torch._dynamo.decorators", "graph_break"), ("bytecap.hook.directives", "graph_break")})
MODULES_WITH_MARKS = frozenset(module for module, _ in _BREAKS)
"""Modules of functions that are marked by their names."""
ORIGINAL = "_torchdynamo_orig_callable"
"""Where the wrappers that torch.compile and torch.compiler.disable make have the function."""


def mark_of(function: FunctionType) -> str | None:
    """The mark of a function, its own or torch.compiler's.

    >>> mark_of(disable(lambda x: x))
    'disabled'
    """
    names = function.__dict__
    if names:
        found = names.get(_MARK)
        if found is not None:
            return found
        # Torch's compiler marks all optimizers for itself as soon as it is used at all.
        is_for_itself = ORIGINAL in names and str(function.__module__).startswith("torch.optim.")
        for name, mark in _OF_TORCH:
            if names.get(name) and not is_for_itself:
                return "skipped" if names.get("_torchdynamo_disable_recursive") is False else mark
    return "break" if (function.__module__, function.__qualname__) in _BREAKS else None


def reason_of(function: FunctionType) -> str | None:
    """Why the user disabled it, if that was said."""
    names = function.__dict__
    return names.get(_REASON) or names.get("_torchdynamo_disable_msg")


def original_of(function: FunctionType) -> Any:
    """The callable below the wrapper that torch.compile or torch.compiler.disable made; None for other functions."""
    return function.__dict__.get(ORIGINAL)


def disable(target: Any = None, *, recursive: bool = True, reason: str | None = None) -> Any:
    """Run a function plain, inside and outside of captured code: a wrapper, or a decorator without `target`.

    target: a function, method or other callable; of a class, calls of its instances run plain (and the class itself
        is returned). recursive: so does all that it calls; otherwise that may be captured by itself.
    reason: told where the call ends a graph.

    >>> @disable(reason="talks to a file")
    ... def log(x): return x
    >>> log(3), log.__name__
    (3, 'log')
    """
    if target is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if not callable(target):
        raise TypeError(f"disable() takes a callable, not a {type(target).__name__}")
    if isinstance(target, type):
        target.__call__ = disable(target.__call__, recursive=recursive, reason=reason)  # type: ignore[method-assign]
        return target
    if isinstance(target, MethodType):
        return MethodType(disable(target.__func__, recursive=recursive, reason=reason), target.__self__)
    while isinstance(target, Dispatcher) and target.owner is not None:
        target = target.__wrapped__
    wrapper = _plain(target) if recursive or not isinstance(target, FunctionType) else _with_own_code(target)
    functools.update_wrapper(wrapper, target)
    return mark(wrapper, "disabled" if recursive else "skipped", reason)


def _plain(target: Callable[..., Any]) -> Callable[..., Any]:
    def run_plain(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    disable_code(run_plain.__code__)
    return run_plain


def _with_own_code(function: FunctionType) -> FunctionType:
    """The same function with a code object that no other one has: marks in the hook are on code."""
    code, names = function.__code__.replace(), function.__globals__
    copy = FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def graph_break(reason: str = "") -> None:
    """End the graph here when it stands in captured code; nothing in plain code."""


def assume_constant(function: Target) -> Target:
    """Call the function while a frame is captured, and use that result until the frame is captured anew.

    Its arguments are plain Python values and objects. Returns the function.
    """
    return mark(function, "constant")


def is_compiling() -> bool:
    """True in captured code, False in plain code.

    >>> is_compiling()
    False
    """
    return False


def mark(target: Target, name: str, reason: str | None = None) -> Target:
    """Put a mark on a function."""
    function = target.__func__ if isinstance(target, MethodType) else target
    function.__dict__.update({_MARK: name, _REASON: reason})
    return target
