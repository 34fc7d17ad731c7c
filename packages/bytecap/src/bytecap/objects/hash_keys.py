"""Host keys: hashable objects that are equal when the evaluated program's keys are equal, with the same hashes.

A set of host keys therefore has the order that CPython's own set would have, where that order does not depend on
addresses.

key ::= constant | tuple of keys | frozenset of keys | Identity of an object | UserKey of an object
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from bytecap.objects.constant import Constant

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.objects.base import Value


class Identity:
    """An object that is equal to itself only."""

    __slots__ = ("real",)

    def __init__(self, real: Any) -> None:
        self.real = real

    def __hash__(self) -> int:
        return object.__hash__(self.real)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.real is other.real


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
        return not isinstance(other, Identity) and self.tracer.evaluate.equal(self.tracer, self.value, Constant(other))


def is_lasting_key(key: Hashable) -> bool:
    """Whether the hash is the same number in every run of the process: no address is in it."""
    if isinstance(key, (tuple, frozenset)):
        return all(is_lasting_key(part) for part in key)
    return not isinstance(key, Identity)
