"""`digest(document)`: a content hash that does not see names or provenance, the cache key.

Values, buffers, axes, kernels and inputs are numbered in the order in which they are defined. The user's lines, the
code object, origins, fusion decisions and the partition report are left out. Names that carry meaning stay: targets,
ops, dtypes, sources, symbols and the text of kernel sources.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, cast

import msgspec

from stagewire import capture, grad, graph, loop, program
from stagewire.codec import VERSIONS, Document, kind_of

_DROPPED: dict[type[msgspec.Struct], frozenset[str]] = {
    capture.Capture: frozenset({"code"}),
    grad.Grad: frozenset({"partition"}),
    loop.LoopGraph: frozenset({"decisions"}),
    loop.Kernel: frozenset({"origins", "line"}),
}
"""Provenance by struct; a field `line` is dropped everywhere."""


def digest(document: Document) -> str:
    """64 hexadecimal digits; equal for documents that are equal up to names of values and provenance.

    >>> from stagewire import Graph, Prim
    >>> from stagewire.grad import Binding
    >>> len(digest(Prim(binding=Binding(inputs=(), outputs=()), forward=Graph((), (), ()))))
    64
    """
    kind = kind_of(document)
    body = _Canonical().value(document)
    return hashlib.sha256(msgspec.msgpack.encode((kind, VERSIONS[kind], body))).hexdigest()


class _Canonical:
    """Plain data of one scope: names of values are replaced by their number in order of first sight."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def name(self, name: str | None) -> int | None:
        """The number of a name; -1 for "", which means that nothing is kept."""
        if name is None:
            return None
        return self.numbers.setdefault(name, len(self.numbers)) if name else -1

    def names(self, names: tuple[str, ...]) -> list[int | None]:
        return [self.name(name) for name in names]

    def value(self, value: Any) -> Any:
        match value:
            case bool() | int() | None:
                return _integer(value)
            case float():
                return ["float", value.hex()]
            case str() | bytes():
                return value
            case tuple():
                return [self.value(item) for item in cast("tuple[Any, ...]", value)]
            case dict():
                return self._dict(cast("dict[str, Any]", value))
            case msgspec.Struct():
                return self._struct(value)
            case _:
                raise TypeError(f"{type(value).__name__} is no part of a document")

    def _dict(self, value: dict[str, Any]) -> Any:
        """Keyword arguments: their order has no meaning."""
        return ["dict", [[key, self.value(value[key])] for key in sorted(value)]]

    def _struct(self, value: msgspec.Struct) -> Any:
        kind = type(value)
        scope = _Canonical() if kind in _SCOPES else self
        named = _NAMED.get(kind, {})
        dropped = _DROPPED.get(kind, frozenset())
        parts: list[Any] = [kind.__name__]
        for field in _ORDER.get(kind, value.__struct_fields__):
            if field == "line" or field in dropped:
                continue
            item = getattr(value, field)
            read: Callable[[_Canonical, Any], Any] = named.get(field, _Canonical.value)
            parts.append(read(scope, item))
        return parts


def _integer(value: bool | int | None) -> Any:
    """MessagePack has 64 bits; True and 1 are different already."""
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        return ["int", str(value)]
    return value


_Named = dict[str, Callable[[_Canonical, Any], Any]]
_ONE: Callable[[_Canonical, Any], Any] = _Canonical.name
_MANY: Callable[[_Canonical, Any], Any] = _Canonical.names

_SCOPES: frozenset[type[msgspec.Struct]] = frozenset({graph.Graph, loop.LoopGraph, program.Unit})
"""Structs that begin a name space of their own."""

_ORDER: dict[type[msgspec.Struct], tuple[str, ...]] = {
    program.Unit: ("target", "inputs", "input_types", "kernels", "source", "instructions", "outputs"),
}
"""Fields in the order of definition, where that is not the order of declaration."""


def _kernel_scope(scope: _Canonical, sections: Any) -> Any:
    return scope.value(sections)


_NAMED: dict[type[msgspec.Struct], _Named] = {
    graph.Value: {"name": _ONE},
    graph.Ref: {"name": _ONE},
    grad.BoundInput: {"name": _ONE},
    grad.BoundConstant: {"name": _ONE},
    loop.AxisAtom: {"name": _ONE},
    loop.ValueAtom: {"name": _ONE},
    loop.Axis: {"name": _ONE},
    loop.Load: {"result": _ONE, "buffer": _ONE},
    loop.Store: {"buffer": _ONE},
    loop.Compute: {"result": _ONE},
    loop.IndexValue: {"result": _ONE},
    loop.Reduce: {"results": _MANY},
    loop.Kernel: {"name": _ONE},
    loop.Extern: {"results": _MANY},
    loop.Free: {"buffer": _ONE},
    loop.Buffer: {"name": _ONE, "base": _ONE, "reuse": _ONE},
    loop.LoopGraph: {"inputs": _MANY},
}
