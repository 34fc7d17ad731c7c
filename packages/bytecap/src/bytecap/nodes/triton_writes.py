"""Which arguments a Triton kernel writes, by reading its Python source.

Of each expression it is known which parameters it may hold a pointer of (`origins`): what is computed of a pointer is
one, what is loaded is none. A store or an atomic writes the origins of its pointer. Functions that the kernel calls are
read in turn; one that cannot be read is taken to write every pointer that it is given.

    statement ::= targets get the origins of the value, whatever the order and the branch (a fixed point)
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import sys
import textwrap
from collections.abc import Mapping
from functools import cached_property
from typing import Any

Origins = frozenset[str]
NOTHING: Origins = frozenset()

_LIBRARY = "triton.language"
_PLAIN = (range, len, min, max, float, int, bool, abs, print, zip, enumerate)
_WRITERS = ("store", "atomic_", "scatter", "descriptor_store")
_READERS = frozenset({"load", "gather", "load_tensor_descriptor", "descriptor_load", "experimental_descriptor_load"})
_OPAQUE = frozenset({"inline_asm_elementwise", "map_elementwise", "extern_elementwise"})
"""Functions of the language whose work is not seen."""
_UNKNOWN = object()


def written_parameters(function: Any, constants: Mapping[str, Any]) -> Origins:
    """The parameters whose memory a kernel may write.

    function: the Python function below `triton.jit`. constants: what parameters are given that is no tensor and no
        number: functions among them are read where the kernel calls them.
    """
    return _Reading().of(function, constants).written


class _Reading(dict[tuple[Any, frozenset[tuple[str, Any]]], "_Function"]):
    """The functions that are read, and those that are being read: one that calls itself writes what it is given."""

    def of(self, function: Any, constants: Mapping[str, Any]) -> _Function:
        callables = frozenset((name, value) for name, value in constants.items() if callable(value))
        key = function, callables
        if key not in self:
            self[key] = _Unread(function)
            with contextlib.suppress(OSError, TypeError, SyntaxError):  # no source
                self[key] = _Function(self, function, dict(callables))
        return self[key]


class _Function:
    """One function: written, the parameters whose memory it writes; returned, those of which it returns pointers."""

    def __init__(self, reading: _Reading, function: Any, constants: dict[str, Any]) -> None:
        self.reading, self.function, self.constants = reading, function, constants
        definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        if not isinstance(definition, ast.FunctionDef):
            raise TypeError(f"{function!r} is no function")
        self.origins: dict[str, Origins] = {name: frozenset((name,)) for name in self.parameters}
        self.written, self.returned = NOTHING, NOTHING
        while True:
            before = dict(self.origins), self.written, self.returned
            for statement in definition.body:
                self._read(statement)
            if before == (self.origins, self.written, self.returned):
                break

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.function).parameters)

    @cached_property
    def _scope(self) -> Mapping[str, Any]:
        """The names around the function."""
        return {**vars(builtins), **self.function.__globals__, **inspect.getclosurevars(self.function).nonlocals}

    def _read(self, tree: ast.AST) -> None:
        match tree:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    for to, item in _pairs(target, value):
                        self._give([to], self._origins(item))
            case ast.AugAssign(target=target, value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                self._give([target], self._origins(value))
            case ast.For(target=target, iter=iterable):
                self._give([target], self._origins(iterable))
            case ast.Return(value=ast.expr() as value):
                self.returned |= self._origins(value)
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                self._give([target], self._origins(value))
            case ast.expr():
                self._origins(tree)
                return
        for child in ast.iter_child_nodes(tree):
            self._read(child)

    def _give(self, targets: list[ast.expr], origins: Origins) -> None:
        for target in targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name):
                    self.origins[name.id] = self.origins.get(name.id, NOTHING) | origins

    def _origins(self, tree: ast.AST) -> Origins:
        """Of which parameters an expression may hold pointers; what its calls write is noted."""
        match tree:
            case ast.Name(id=name):
                return self.origins.get(name, NOTHING)
            case ast.Call():
                return self._call(tree)
            case ast.NamedExpr(target=target, value=value) | ast.comprehension(target=target, iter=value):
                self._give([target], self._origins(value))
        return NOTHING.union(*map(self._origins, ast.iter_child_nodes(tree)))

    def _call(self, call: ast.Call) -> Origins:
        positional = [self._origins(argument) for argument in call.args]
        named = {keyword.arg: self._origins(keyword.value) for keyword in call.keywords}
        given = NOTHING.union(*positional, *named.values())
        callee = self._object(call.func)
        if callee is _UNKNOWN and isinstance(call.func, ast.Attribute):  # a method, of a pointer or a descriptor
            receiver = self._origins(call.func.value)
            language = sys.modules[_LIBRARY]
            kinds = (language.tensor, language.tensor_descriptor, language.constexpr)
            if not any(hasattr(kind, call.func.attr) for kind in kinds):
                self.written |= receiver | given
            return self._language(call.func.attr, [receiver, *positional], named, receiver | given)
        function = python_function(callee)
        if any(callee is one for one in _PLAIN) or f"{getattr(function, '__module__', '')}.".startswith(f"{_LIBRARY}."):
            return self._language(function.__name__ if function else "", positional, named, given)
        if function is None or any(isinstance(argument, ast.Starred) for argument in call.args) or None in named:
            self.written |= given
            return given
        passed = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
        passed |= dict(zip(inspect.signature(function).parameters, call.args, strict=False))
        constants = {name: self._object(value) for name, value in passed.items()}
        inner = self.reading.of(function, constants)
        origins = dict(zip(inner.parameters, positional, strict=False)) | named
        self.written |= NOTHING.union(*(origins.get(name, NOTHING) for name in inner.written))
        return NOTHING.union(*(origins.get(name, NOTHING) for name in inner.returned))

    def _language(
        self, name: str, positional: list[Origins], named: Mapping[str | None, Origins], given: Origins
    ) -> Origins:
        """A function of Triton's language, or a method."""
        if name.startswith(_WRITERS):
            pointer = positional[0] if positional else NOTHING
            self.written |= pointer.union(*(named.get(key, NOTHING) for key in ("pointer", "desc")))
            return NOTHING
        if name in _OPAQUE:
            self.written |= given
        return NOTHING if name in _READERS else given

    def _object(self, tree: ast.expr) -> Any:
        """What a name or an attribute of a module stands for, where the kernel does not assign it."""
        match tree:
            case ast.Name(id=name):
                if name in self.constants:
                    return self.constants[name]
                if name in self.origins:
                    return _UNKNOWN
                return self._scope.get(name, _UNKNOWN)
            case ast.Attribute(value=value, attr=name):
                holder = self._object(value)
                if inspect.ismodule(holder) or inspect.isclass(holder):
                    return getattr(holder, name, _UNKNOWN)
        return _UNKNOWN


class _Unread(_Function):
    """A function without source, or one that calls itself."""

    def __init__(self, function: Any) -> None:
        self.function = function
        try:
            names = self.parameters
        except (TypeError, ValueError):
            names = ()
        self.written = self.returned = frozenset(names)


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """What is assigned to what, where both sides are written as tuples."""
    match target, value:
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            if not any(isinstance(item, ast.Starred) for item in (*targets, *values)):
                return list(zip(targets, values, strict=True))
    return [(target, value)]


def python_function(callee: Any) -> Any:
    """The Python function below `triton.jit` and its kin; None for other objects."""
    while not inspect.isfunction(callee) and hasattr(callee, "fn"):
        callee = callee.fn
    return callee if inspect.isfunction(callee) else None
