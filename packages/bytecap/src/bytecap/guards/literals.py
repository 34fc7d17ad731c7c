"""Literals of guard data (`stagewire.graph.Arg`) as the Python values they stand for."""

from __future__ import annotations

import torch

from bytecap.guards.errors import GuardError
from stagewire import graph

_PLAIN = frozenset((type(None), bool, int, float, str))


def to_python(value: graph.Arg) -> object:
    """The Python value of a literal; GuardError for what is not a literal (refs, handles).

    >>> to_python(graph.Tuple((1, graph.DTypeArg("float32"))))
    (1, torch.float32)
    """
    if type(value) in _PLAIN:
        return value
    match value:
        case graph.Tuple(items=items):
            return tuple(to_python(item) for item in items)
        case graph.List(items=items):
            return [to_python(item) for item in items]
        case graph.Dict(items=items):
            return {key: to_python(item) for key, item in items}
        case graph.Slice(start=start, stop=stop, step=step):
            return slice(to_python(start), to_python(stop), to_python(step))
        case graph.Ellipsis():
            return ...
        case graph.DTypeArg(name=name) | graph.LayoutArg(name=name):
            return getattr(torch, name)
        case graph.MemoryFormatArg(name=name):
            return getattr(torch, name)
        case graph.DeviceArg(name=name):
            return torch.device(name)
        case graph.NonFinite(text=text):
            return float(text)
        case graph.Complex(real=real, imag=imag):
            return complex(_part(real), _part(imag))
    raise GuardError(f"{value!r} is not a literal")


def _part(value: float | graph.NonFinite) -> float:
    return float(value.text) if isinstance(value, graph.NonFinite) else value
