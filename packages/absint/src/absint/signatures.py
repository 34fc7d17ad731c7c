"""Functions of some of an op's arguments, bound to the signature in its schema.

A parameter takes the argument of its name, one before a `/` the argument in its place. What a call leaves out has the
schema's default; a parameter's own default is for overloads whose schema has no such argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch._ops import OpOverload

__all__ = ["bind", "full_name"]


def full_name(name: str) -> str:
    """ "add.Tensor" -> "aten.add.Tensor", "gelu" -> "aten.gelu.default"."""
    parts = name.split(".")
    if len(parts) == 1:
        return f"aten.{name}.default"
    return f"aten.{name}" if len(parts) == 2 else name


def bind(function: Callable[..., Any], func: OpOverload) -> Callable[..., Any]:
    """`function`, called with the arguments of the overload `func`.

    >>> import torch
    >>> bind(lambda alpha, self: (self, alpha), torch.ops.aten.add.Tensor)(3, 4)
    (3, 1)
    """
    arguments = {a.name: f"{a.name}_" if iskeyword(a.name) else a.name for a in func._schema.arguments}
    in_order = list(arguments.values())
    taken: list[str] = []
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind is parameter.POSITIONAL_ONLY:
            taken.append(in_order[position])
        elif parameter.name in arguments:
            taken.append(f"{parameter.name}={arguments[parameter.name]}" if len(taken) < position else parameter.name)
        elif parameter.default is parameter.empty:
            raise TypeError(f"{func} has no argument {parameter.name}")
    defaults = [_default(a) for a in func._schema.arguments if a.has_default_value()]
    if taken == in_order and getattr(function, "__defaults__", None) == (tuple(defaults) or None):
        return function
    looked_at = {name.partition("=")[2] or name for name in taken}
    parameters: list[str] = []
    values: dict[str, Any] = {}
    for name, argument in zip(in_order[::-1], func._schema.arguments[::-1], strict=True):
        if len(values) == len(parameters) and (argument.has_default_value() or name not in looked_at):
            values[name] = _default(argument)
        parameters.append(f"{name}=defaults[{name!r}]" if name in values else name)
    # Written out, as namedtuple does: the call of a function that Python binds costs a tenth of one bound by hand.
    source = f"lambda {', '.join(reversed(parameters))}: function({', '.join(taken)})"
    return eval(source, {"function": function, "defaults": values})  # type: ignore[no-any-return]


def _default(argument: Any) -> Any:
    """(The dtype int64 would be the 4 of C++.)"""
    return argument.default_value if argument.has_default_value() and argument.name != "dtype" else None
