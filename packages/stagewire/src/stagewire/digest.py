"""`digest(document)`: a content hash that does not see names or provenance, the cache key.

Values, buffers and axes are numbered in the order in which they are defined. The user's lines, the code object,
origins, fusion decisions, rewrites and the partition report are left out. Names that carry meaning stay: targets, ops,
dtypes, sources, symbols, kernels of a `Unit` and the text of their sources.

The canonical form is MessagePack of plain data. A struct that can hold no name is encoded as it stands, which is what
makes a digest of thousands of nodes cheap; the others go through the table of writers below.
"""

from __future__ import annotations

import hashlib
import typing
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec

from stagewire import capture, grad, graph, loop, prim, program
from stagewire.codec import VERSIONS, Document, kind_of
from stagewire.notation import fields_of
from stagewire.types import ScalarType

_DROPPED: dict[type[msgspec.Struct], frozenset[str]] = {
    capture.Capture: frozenset({"code"}),
    capture.Check: frozenset({"lines"}),
    grad.Grad: frozenset({"rewrites"}),
    prim.Prim: frozenset({"partition"}),
    loop.LoopGraph: frozenset({"decisions"}),
    loop.Kernel: frozenset({"name", "origins"}),
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
    body = _visit(document, _Scope())
    return hashlib.sha256(_packed((kind, VERSIONS[kind], body))).hexdigest()


class _Scope:
    """Numbers of names in order of first sight; `outer` holds the buffers that a kernel sees."""

    __slots__ = ("names", "outer")

    def __init__(self, outer: dict[str, int] | None = None) -> None:
        self.names: dict[str, int] = {}
        self.outer = self.names if outer is None else outer


def _number(names: dict[str, int], name: str | None) -> int | None:
    """The number of a name; -1 for "", which means that nothing is kept."""
    if name is None:
        return None
    return names.setdefault(name, len(names)) if name else -1


_Write = Callable[[Any, _Scope], Any]


def _visit(value: Any, scope: _Scope) -> Any:
    """`value` as plain data; what holds no name stays as it is."""
    write = _writer_of(type(value))
    return value if write is None else write(value, scope)


def _one(name: str | None, scope: _Scope) -> int | None:
    return _number(scope.names, name)


def _many(names: tuple[str, ...], scope: _Scope) -> list[int | None]:
    return [_number(scope.names, name) for name in names]


def _buffer(name: str, scope: _Scope) -> int | None:
    return _number(scope.outer, name)


def _tuple(value: tuple[Any, ...], scope: _Scope) -> list[Any]:
    return [item if (write := _writer_of(type(item))) is None else write(item, scope) for item in value]


def _dict(value: dict[str, Any], scope: _Scope) -> list[Any]:
    """Keyword arguments: their order has no meaning."""
    return [(key, _visit(value[key], scope)) for key in sorted(value)]


def _value(value: graph.Value, scope: _Scope) -> tuple[Any, ...]:
    number = _number(scope.names, value.name)
    if isinstance(value.type, ScalarType):  # a symbol, which expressions name
        return number, value.type, value.name
    return number, value.type


def _unit(unit: program.Unit, scope: _Scope) -> list[Any]:
    types = zip(unit.inputs, unit.input_types, strict=False)
    names = [name for name, type in types if isinstance(type, ScalarType)]
    return [*_writer(program.Unit)(unit, scope), names]


def _node(node: graph.Node, scope: _Scope) -> tuple[Any, ...]:
    args = _tuple(node.args, scope)
    kwargs = _dict(node.kwargs, scope) if node.kwargs else None
    results = [_value(result, scope) for result in node.results]
    return node.target, args, kwargs, results, node.phase, node.effect, node.checkpoint


def _kernel(kernel: loop.Kernel, scope: _Scope) -> tuple[Any, ...]:
    """Axes and values have a name space of their own, in which loads and stores name the graph's buffers."""
    inside = _Scope(scope.names)
    return "kernel", _tuple(kernel.axes, inside), _tuple(kernel.sections, inside)


_Named = dict[str, _Write]

_NAMED: dict[type[msgspec.Struct], _Named] = {
    grad.BoundInput: {"name": _one},
    grad.BoundConstant: {"name": _one},
    loop.ValueAtom: {"name": _one},
    loop.Axis: {"name": _one},
    loop.Load: {"result": _one, "buffer": _buffer},
    loop.Store: {"buffer": _buffer},
    loop.Compute: {"result": _one},
    loop.IndexValue: {"result": _one},
    loop.Reduce: {"results": _many},
    loop.Scan: {"result": _one},
    loop.Extern: {"results": _many},
    loop.Free: {"buffer": _one},
    loop.Buffer: {"name": _one, "base": _one, "reuse": _one},
    loop.LoopGraph: {
        "inputs": _many,
        # Inputs that are symbols: their places, and the names that expressions have for them.
        "symbols": lambda names, scope: [(_number(scope.names, name), name) for name in names],
        "updates": lambda pairs, scope: [(number, _number(scope.names, name)) for number, name in pairs],
    },
    program.Unit: {"inputs": _many, "written": _many},
    program.Allocate: {"buffer": _one, "reuse": _one},
    program.MakeView: {"buffer": _one, "base": _one},
    program.Launch: {"buffers": _many},
    program.CallExtern: {"results": _many},
    program.Release: {"buffer": _one},
}
"""Fields that hold names of values, and how each is written."""

_SCOPES: frozenset[type[msgspec.Struct]] = frozenset({graph.Graph, loop.LoopGraph, program.Unit})
"""Structs that begin a name space."""

_FIRST: dict[type[msgspec.Struct], tuple[str, ...]] = {
    program.Unit: ("target", "inputs", "input_types", "kernels", "source", "instructions", "outputs"),
}
"""Fields that are written before the others: names are numbered as they are defined."""

_SPECIAL: dict[type[Any], _Write] = {
    tuple: _tuple,
    dict: _dict,
    graph.Ref: lambda value, scope: ("%", _number(scope.names, value.name)),
    graph.Value: _value,
    graph.Node: _node,
    loop.Index: lambda index, scope: (
        index.constant,
        [(term.coefficient, _visit(term.atom, scope)) for term in index.terms],
    ),
    loop.AxisAtom: lambda atom, scope: _number(scope.names, atom.name),
    loop.Kernel: _kernel,
    program.Unit: _unit,
}


def _writer(kind: type[msgspec.Struct]) -> _Write:
    """The writer of a struct, from the tables."""
    named = _NAMED.get(kind, {})
    dropped = _DROPPED.get(kind, frozenset()) | {"line"}
    order = dict.fromkeys((*_FIRST.get(kind, ()), *kind.__struct_fields__))
    plan = tuple((field, named.get(field, _visit)) for field in order if field not in dropped)
    tag, opens = kind.__name__, kind in _SCOPES

    def write(value: Any, scope: _Scope) -> list[Any]:
        inside = _Scope() if opens else scope
        parts: list[Any] = [tag]
        for field, read in plan:
            parts.append(read(getattr(value, field), inside))
        return parts

    return write


def _structs(kind: Any, seen: set[type[msgspec.Struct]]) -> Iterator[type[msgspec.Struct]]:
    """Every struct that a value of the type `kind` may hold, each once."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind in seen:
            return
        seen.add(kind)
        yield kind
        for field in fields_of(kind):
            yield from _structs(field.type, seen)
    for argument in typing.get_args(kind):
        yield from _structs(argument, seen)


def _holds_names(kind: type[msgspec.Struct]) -> bool:
    """True where a value of this struct may hold a name or provenance."""
    return any(
        struct in _NAMED or struct in _DROPPED or struct in _SPECIAL or "line" in struct.__struct_fields__
        for struct in _structs(kind, set())
    )


def _find_writer(kind: type[Any]) -> _Write | None:
    """How a value of this class is written; None where it stays as it is."""
    if kind in _SPECIAL:
        return _SPECIAL[kind]
    return _writer(kind) if issubclass(kind, msgspec.Struct) and _holds_names(kind) else None


_writer_of: Callable[[Any], _Write | None] = cache(_find_writer)  # one entry a class


def _packed(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:  # MessagePack has 64 bits
        return msgspec.msgpack.encode(_with_large_integers(msgspec.to_builtins(value)))


def _with_large_integers(value: Any) -> Any:
    match value:
        case bool():
            return value
        case int() if not -(2**63) <= value < 2**64:
            return ["int", str(value)]
        case list() | tuple():
            return [_with_large_integers(item) for item in value]
        case dict():
            return {key: _with_large_integers(item) for key, item in value.items()}
        case _:
            return value
