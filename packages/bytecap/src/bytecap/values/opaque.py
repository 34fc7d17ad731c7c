"""Real objects of C types that the evaluator only passes along: locks, generators, context variables, patterns."""

from __future__ import annotations

import inspect
import re
import types
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from bytecap.values.base import Value
from stagewire.capture import Source

if TYPE_CHECKING:
    from bytecap.emit import Emitter
    from bytecap.tracer import Tracer

# (type, method names or None for all): methods whose result is fixed for the life of a capture.
_PURE_METHODS: tuple[tuple[type, frozenset[str] | None], ...] = (
    (re.Pattern, None),
    (re.Match, None),
    (types.MappingProxyType, None),
    (inspect.Signature, None),
    (inspect.Parameter, None),
    (ContextVar, frozenset({"get"})),
)


def is_pure_method(real: Any, name: str) -> bool:
    """Whether calling `name` on this object at capture time is sound."""
    return any(isinstance(real, cls) and (names is None or name in names) for cls, names in _PURE_METHODS)


class OpaqueValue(Value):
    """An object without a model; it has identity, and real attributes of its type."""

    __slots__ = ("real",)

    def __init__(self, real: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.real = real

    def python_type(self) -> type:
        return type(self.real)

    def concrete(self) -> Any:
        return self.real

    def length(self, tracer: Tracer) -> int:
        from bytecap.fold import run

        return run(tracer, len, (self.real,))

    def truth(self, tracer: Tracer) -> bool:
        from bytecap.fold import run

        return run(tracer, bool, (self.real,))

    def iterate(self, tracer: Tracer) -> Value:
        from bytecap.fold import run
        from bytecap.values.iterators import HostIterator

        members = run(tracer, list, (self.real,))
        return HostIterator(tracer.wrap(member, None) for member in members)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.constant(self.real)
