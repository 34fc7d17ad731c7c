"""Doing things at once: host calls on real objects whose result cannot depend on a tensor's content."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bytecap.errors import StageError, UnsupportedCall
from bytecap.signals import NotConcrete, PythonRaise

if TYPE_CHECKING:
    from bytecap.tracer import Tracer
    from bytecap.values.base import Value


def run(tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any = None) -> Any:
    """Call `function` on real objects; what it raises is raised in the evaluated program."""
    try:
        return function(*args, **(kwargs or {}))
    except (PythonRaise, NotConcrete, StageError):
        raise
    except Exception as error:
        raise tracer.raises_real(error) from None


def fold(tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any = None) -> Value:
    """The result of a pure host call as a new value."""
    return tracer.fresh(run(tracer, function, args, kwargs))


def fold_call(tracer: Tracer, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a known-pure function on values that all have real objects."""
    try:
        real_args = tuple(_concrete(arg) for arg in args)
        real_kwargs = {key: _concrete(value) for key, value in kwargs.items()}
    except NotConcrete as error:
        name = getattr(function, "__qualname__", repr(function))
        raise UnsupportedCall(f"{name} needs plain Python values, got {error.args[0]!r}") from None
    return fold(tracer, function, real_args, real_kwargs)


def fold_method(tracer: Tracer, receiver: Value, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method of an immutable object, done at once."""
    from bytecap.values.constant import Constant
    from bytecap.values.opaque import OpaqueValue, is_pure_method

    if isinstance(receiver, OpaqueValue) and (receiver.shows_changes() or not is_pure_method(receiver.real, name)):
        raise UnsupportedCall(f"method {name!r} of a {receiver.describe()}")
    if not isinstance(receiver, (Constant, OpaqueValue)):
        raise UnsupportedCall(f"method {name!r} of a {receiver.describe()}")
    method = run(tracer, getattr, (receiver.concrete(), name))
    return fold_call(tracer, method, args, kwargs)


def _concrete(value: Value) -> Any:
    """The real object; for a new instance of a subclass of a number or text, the number or text."""
    from bytecap.values.constant import Constant
    from bytecap.values.objects import ObjectValue

    if isinstance(value, ObjectValue) and value.real is None and isinstance(value.base, Constant):
        return value.base.value
    return value.concrete()
