"""id() of an object, and of the running thread: good for comparing and as a key, unknown as a number."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from types import BuiltinFunctionType
from typing import Any

from bytecap.context_types import Tracer
from bytecap.errors import CannotRebuild, UnsupportedCall
from bytecap.objects.base import Value
from bytecap.objects.constant import Constant


class IdentityToken(Value):
    """The identity of `real`: tokens of one object are equal, and nothing else is known of the number."""

    __slots__ = ("real",)
    cls = int

    def __init__(self, real: Any) -> None:
        super().__init__()
        self.real = real

    def describe(self) -> str:
        return "id() of an object"

    def reconstruct(self, emitter: Any) -> None:
        raise CannotRebuild("the number that id() gives cannot leave captured code")


def holds_identity(key: Value) -> bool:
    """Whether a key is the identity of an object, or a tuple with one."""
    return any(isinstance(part, IdentityToken) for part in _parts(key))


def with_number(tracer: Tracer, key: Value) -> Value:
    """A key that is the id() of an outside object, as the number: the object is guarded by its identity."""
    known = tracer.objects.by_object.get(id(key.real)) if isinstance(key, IdentityToken) else None
    if known is None or known.source is None:
        return key
    tracer.guards.identity(known.source, key.real, tracer.line())
    return Constant(id(key.real))


def refuse_among_numbers(key: Value, others: Iterable[Value]) -> None:
    """For a key that was not found among `others`: a number from elsewhere may be the id."""
    if holds_identity(key) and any(_is_number(part) for other in others for part in _parts(other)):
        raise UnsupportedCall("id() of an object, looked up among numbers from elsewhere")


def _parts(key: Value) -> list[Value]:
    return getattr(key, "items", [key]) if key.python_type() is tuple else [key]


def _is_number(value: Value) -> bool:
    return value.python_type() is int and not isinstance(value, IdentityToken)


class Identity:
    """An object that is equal to itself only, as `Identity` or not."""

    __slots__ = ("real",)

    def __init__(self, real: Any) -> None:
        self.real = real

    def __hash__(self) -> int:
        return hash(self.real) if isinstance(self.real, BuiltinFunctionType) else object.__hash__(self.real)

    def __eq__(self, other: object) -> bool:
        return self.real is (other.real if isinstance(other, Identity) else other)


class UserKey:
    """An object whose class defines `__eq__` and `__hash__` in Python: both are evaluated."""

    __slots__ = ("hash", "tracer", "value")

    def __init__(self, tracer: Tracer, value: Value, hash_: int) -> None:
        self.tracer = tracer
        self.value = value
        self.hash = hash_

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, UserKey):
            return self.tracer.evaluate.equal(self.tracer, self.value, other.value)
        is_known = not isinstance(other, Identity)
        return is_known and self.tracer.evaluate.equal(self.tracer, self.value, self.tracer.objects.of_key(other))


def is_lasting_key(key: Hashable) -> bool:
    """Whether the hash is the same number in every run of the process: no address is in it."""
    if isinstance(key, (tuple, frozenset)):
        return all(is_lasting_key(part) for part in key)
    return not isinstance(key, Identity)
