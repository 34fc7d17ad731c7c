"""Functions of some of an op's arguments, bound to the signature in its schema.

A parameter takes the argument of its name, one before a `/` the argument in its place. What a call leaves out has the
schema's default; a parameter's own default is for overloads whose schema has no such argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from keyword import iskeyword
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch._ops import OpOverload


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
    schema = func._schema.arguments
    names = [argument.name for argument in schema]
    parameters, in_place, own = _parameters(function)
    if parameters == names and not own and not any(argument.has_default_value() for argument in schema):
        return function
    names = [f"{name}_" if iskeyword(name) else name for name in names]
    taken: list[str] = []
    for position, name in enumerate(parameters):
        if position < in_place:
            taken.append(names[position])
        elif name in names:
            taken.append(name if len(taken) == position else f"{name}={name}")
        elif name not in own:
            raise TypeError(f"{func} has no argument {name}")
    looked_at = {name.rpartition("=")[2] for name in taken}
    written: list[str] = []
    defaults: dict[str, Any] = {}
    for name, argument in zip(reversed(names), reversed(schema), strict=True):
        has_default = argument.has_default_value()
        if len(defaults) == len(written) and (has_default or name not in looked_at):
            # (The dtype int64 would be the 4 of C++.)
            defaults[name] = argument.default_value if has_default and name != "dtype" else None
        written.append(f"{name}=defaults[{name!r}]" if name in defaults else name)
    # Written out, as namedtuple does: the call of a function that Python binds costs a tenth of one bound by hand.
    source = f"lambda {', '.join(reversed(written))}: function({', '.join(taken)})"
    return eval(source, {"function": function, "defaults": defaults})  # type: ignore[no-any-return]


def _parameters(function: Any) -> tuple[list[str], int, frozenset[str]]:
    """Of a function: its parameters, how many stand before a `/`, and which have a default."""
    if type(function) is FunctionType and not hasattr(function, "__wrapped__"):
        code = function.__code__
        names = list(code.co_varnames[: code.co_argcount])
        return names, code.co_posonlyargcount, frozenset(names[len(names) - len(function.__defaults__ or ()) :])
    found = inspect.signature(function).parameters
    return list(found), 0, frozenset(name for name, one in found.items() if one.default is not one.empty)
