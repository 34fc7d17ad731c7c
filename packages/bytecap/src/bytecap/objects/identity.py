"""id() of an object, and of the running thread: good for comparing and as a key, unknown as a number; weakref.ref()."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Hashable, Iterable
from types import BuiltinFunctionType
from typing import Any

import torch

from bytecap.context_types import Emitter, Tracer
from bytecap.errors import CannotRebuild, UnsupportedCall
from bytecap.objects.base import Constant, Declared, Value


class IdentityToken(Value):
    """The identity of `real`: tokens of one object are equal, and nothing else is known of the number.

    function: what gave it: id, hash, or the function that `real` is.
    """

    real: Any
    function: Callable[..., int] = id
    cls = int
    words = "id() of an object"

    def reconstruct(self, emitter: Emitter) -> None:
        value = self.real if isinstance(self.real, Value) else emitter.tracer.objects.by_object.get(id(self.real))
        if self.function is not self.real and value is None:
            raise CannotRebuild("the number that id() gives cannot leave captured code")
        emitter.call_with(self.function, *([] if self.function is self.real else [value]))


def holds_identity(key: Value) -> bool:
    """Whether a key is the identity of an object, or a tuple with one."""
    return any(isinstance(part, IdentityToken) for part in _parts(key))


def with_number(tracer: Tracer, key: Value) -> Value:
    """A key that is the id() of an outside object, as the number: the object is guarded by its identity."""
    known = tracer.objects.by_object.get(id(key.real)) if isinstance(key, IdentityToken) else None
    if known is None or known.source is None:
        return key
    tracer.guards.identity(known.source, key.real)
    return Constant(key.function(key.real))


def refuse_among_numbers(key: Value, others: Iterable[Value]) -> None:
    """For a key that was not found among `others`: a number from elsewhere may be the id."""
    parts = [part for other in others for part in _parts(other)] if holds_identity(key) else []
    if any(part.python_type() is int and not isinstance(part, IdentityToken) for part in parts):
        raise UnsupportedCall("id() of an object, looked up among numbers from elsewhere")


def _parts(key: Value) -> list[Value]:
    return getattr(key, "items", [key]) if key.python_type() is tuple else [key]


class WeakReference(Value):
    """weakref.ref() of an object that the code made, or that something outside may have let go since; or with a
    callback, of an outside object."""

    target: Value
    callback: tuple[Value, ...] = ()
    cls = weakref.ref

    def key(self, tracer: Tracer) -> Hashable:
        """Equal for equal referents; for an outside object, to its references from outside."""
        real = getattr(self.target, "real", None)
        if real is None or self.target.source is None:
            return weakref.ref, tracer.objects.hash_key(self.target)
        if type(real).__eq__ is not object.__eq__:
            raise UnsupportedCall(f"a comparison of a weak reference to a {self.target.describe()}")
        tracer.guards.identity(self.target.source, real)
        return weakref.ref(real)

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.target not in _held(tracer):
            refusal = UnsupportedCall(f"a weak reference to a {self.target.describe()} that may have ended")
            refusal.is_whole = True  # behind a break, what is not used any more is gone
            raise refusal
        return self.target

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_with(weakref.ref, self.target, *self.callback)


def _held(tracer: Tracer) -> set[Value]:
    """What the variables of the frames hold, and what is stored outside."""
    found: set[Value] = set()
    waiting: list[Any] = [effect for effect in tracer.effects if isinstance(effect, Value)]
    for frame in tracer.frames:
        waiting += [frame.globals, *frame.locals.values(), *frame.cells.values(), *frame.stack]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Value):
            if each in found or isinstance(each, (WeakReference, IdentityToken)):
                continue
            found.add(each)
        parts = gc.get_referents(each) if isinstance(each, (Value, dict, list, tuple)) else []
        if isinstance(each, Value) or any(isinstance(part, (Value, tuple)) for part in parts):  # no real container
            waiting += parts
    return found


class Identity(metaclass=Declared):
    """An object that is equal to itself only, as `Identity` or not."""

    real: Any

    def __hash__(self) -> int:
        if isinstance(self.real, torch.Tensor):
            return id(self.real)  # as torch.Tensor.__hash__ says: an outside set is iterated in this order
        return hash(self.real) if isinstance(self.real, BuiltinFunctionType) else object.__hash__(self.real)

    def __eq__(self, other: object) -> bool:
        return self.real is (other.real if isinstance(other, Identity) else other)


class UserKey(metaclass=Declared):
    """An object whose class defines `__eq__` and `__hash__` in Python: both are evaluated."""

    tracer: Tracer
    value: Value
    hash: int

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
