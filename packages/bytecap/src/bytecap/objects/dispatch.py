"""What C code means, by table: methods by the class of value (`Value.methods`), functions and classes by the object.

The rooms above fill the tables when they are imported (`semantics.methods`, `lookasides`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytecap.context_types import Tracer, Value
from bytecap.errors import UnsupportedCall

HANDLERS: dict[Any, Callable[..., Any]] = {}
"""Of each callable with a meaning of its own: a function on `(tracer, *args, **kwargs)` of values."""


def inlined(function: Callable[..., Any]) -> Callable[..., Value]:
    """A table entry: the Python function is evaluated in the place of the callable."""
    return lambda tracer, *args, **kwargs: tracer.objects.wrap(function, None).call(tracer, list(args), kwargs)


def evaluated(function: Callable[..., Any]) -> Callable[..., Value]:
    """A table entry: a Python function that would be done at once, or a node, is evaluated like others."""
    return lambda tracer, *args, **kwargs: tracer.evaluate.inline(
        tracer, tracer.objects.wrap(function, None), list(args), kwargs
    )


def call_table_method(tracer: Tracer, self: Value, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call one of the methods of a class of values."""
    method = self.methods.get(name)  # type: ignore[union-attr]
    if method is None:
        raise UnsupportedCall(f"method {name!r} of a {self.describe()}")
    try:
        return method(tracer, self, *args, **kwargs)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
    raise UnsupportedCall(f"method {name!r} of a {self.describe()} with {len(args)} arguments and {sorted(kwargs)}")


def handler_of(real: Any) -> Callable[..., Any] | None:
    """The table entry of a callable, or None."""
    try:
        return HANDLERS.get(real)
    except TypeError:  # pybind11 before 3 has methods in an `instancemethod`
        plain = getattr(real, "__func__", None)
        return None if plain is None else handler_of(plain)
