"""Argument values of torch calls as document data, and back: `to_arg` and `from_arg`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from absint.errors import UnknownTarget, UnwirableArgument
from absint.symbolic.size import dim_of, unwrap
from absint.targets import resolve, target_name
from stagewire import graph
from stagewire.graph import Arg
from stagewire.literals import literal, number


def to_arg(value: object, encode: Callable[[object], Arg] | None = None) -> Arg:
    """`value` as an `Arg`; `encode` turns what is no plain data (tensors, symbols) into a Ref or handle.

    `encode` may return NotImplemented; then `UnwirableArgument` is raised, as it is without `encode`.

    >>> to_arg((1, 2.5, torch.float32))
    Tuple(items=(1, 2.5, DTypeArg(name='float32')))
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    convert = _LEAVES.get(kind)
    if convert is not None:
        return convert(value)
    match value:
        case torch.SymInt():
            return dim_of(value)
        case torch.SymFloat() if encode is None:
            return literal(float(unwrap(value)))
        case torch.Size() | tuple():
            return graph.Tuple(tuple([to_arg(item, encode) for item in value]))
        case list():
            return graph.List(tuple([to_arg(item, encode) for item in value]))
        case dict():
            if unknown := [key for key in value if not isinstance(key, str)]:
                name = type(unknown[0]).__name__
                raise UnwirableArgument(f"a dict key of type {name}; document keys are strings")
            return graph.Dict(tuple([(key, to_arg(item, encode)) for key, item in value.items()]))
        case slice():
            parts = (value.start, value.stop, value.step)
            return graph.Slice(*[to_arg(part, encode) for part in parts])
    encoded = NotImplemented if encode is None else encode(value)
    if encoded is not NotImplemented:
        return encoded
    if callable(value):
        try:
            return graph.Callee(target_name(value))
        except UnknownTarget as error:
            raise UnwirableArgument(str(error.message)) from error
    raise UnwirableArgument(f"a {kind.__name__} is no argument of a document")


def _torch_name(value: object) -> str:
    return str(value).removeprefix("torch.")


_ATOMS = frozenset((type(None), bool, int, str))
_LEAVES: dict[type, Callable[[Any], Arg]] = {
    float: literal,
    complex: lambda value: graph.Complex(literal(value.real), literal(value.imag)),
    torch.dtype: lambda value: graph.DTypeArg(_torch_name(value)),
    torch.device: lambda value: graph.DeviceArg(str(value)),
    torch.layout: lambda value: graph.LayoutArg(_torch_name(value)),
    torch.memory_format: lambda value: graph.MemoryFormatArg(_torch_name(value)),
    type(Ellipsis): lambda value: graph.Ellipsis(),
    graph.Ref: lambda value: value,
}


def from_arg(arg: Arg, lookup: Callable[[Any], object]) -> Any:
    """The Python value of an `Arg`; `lookup` gives the object of a Ref, a handle or a size expression.

    >>> from_arg(to_arg([1, slice(None, 2)]), lookup=lambda ref: None)
    [1, slice(None, 2, None)]
    """
    match arg:
        case None | bool() | int() | float() | str():
            return arg
        case graph.Tuple(items):
            return tuple([from_arg(item, lookup) for item in items])
        case graph.List(items):
            return [from_arg(item, lookup) for item in items]
        case graph.Dict(items):
            return {key: from_arg(item, lookup) for key, item in items}
        case graph.Slice(start, stop, step):
            return slice(*[from_arg(part, lookup) for part in (start, stop, step)])
        case graph.Ellipsis():
            return ...
        case graph.DTypeArg(name) | graph.LayoutArg(name) | graph.MemoryFormatArg(name):
            return _torch_constant(name)
        case graph.DeviceArg(name):
            return torch.device(name)
        case graph.NonFinite():
            return number(arg)
        case graph.Complex(real, imag):
            return complex(from_arg(real, lookup), from_arg(imag, lookup))
        case graph.Callee(target):
            return resolve(target)
        case _:
            return lookup(arg)


def _torch_constant(name: str) -> Any:
    value = getattr(torch, name, None)
    if not isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        raise UnwirableArgument(f"torch.{name} is no dtype, layout or memory format")
    return value
