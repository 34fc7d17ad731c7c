"""Iterators over evaluated objects: `__next__` objects, the old `__getitem__` protocol, iter(callable, sentinel)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytecap.bytecode.rebuild import advance
from bytecap.context_types import Emitter, Tracer
from bytecap.errors import CannotRebuild
from bytecap.objects.base import IteratorValue, Value
from bytecap.objects.live import of_program
from bytecap.objects.signals import EXHAUSTED


class ObjectIterator(IteratorValue):
    """An evaluated object with `__next__`."""

    target: Value

    def python_type(self) -> type:
        return self.target.python_type()

    def next(self, tracer: Tracer) -> Any:
        return self.target.next(tracer)

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        return self.target.get_attribute(tracer, name)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load(self.target)


class ContainerIterator(IteratorValue):
    """iter() or reversed() of a view of a dict, a set or a deque: CPython's own, over the container in the value.

    owner: has `host()`, that container; `given(item)`, the value of one of its items; `blank()`, an empty object of its
    class; and `stamp()`, which differs when it has changed.
    """

    __slots__ = ("host", "maker", "owner", "stamp", "taken")

    def __init__(self, tracer: Tracer, owner: Any, maker: Callable[[Any], Any] = iter) -> None:
        super().__init__()
        self.owner = owner
        self.maker = maker
        self.host = maker(owner.host(tracer))
        self.stamp = owner.stamp()
        self.taken = 0

    def python_type(self) -> type:
        return type(self.maker(self.owner.blank()))

    def next(self, tracer: Tracer) -> Any:
        try:
            item = next(self.host, EXHAUSTED)
        except Exception as error:
            raise of_program(tracer, error) from None
        if item is EXHAUSTED:
            self.taken = -1
            return EXHAUSTED
        self.taken += 1
        return self.owner.given(tracer, item)

    def reconstruct(self, emitter: Emitter) -> None:
        if self.taken < 0:
            emitter.constant(self.owner.blank())
        elif self.owner.mutated or self.owner.stamp() != self.stamp:
            raise CannotRebuild(f"an iterator over a {self.owner.describe()} that has changed")
        else:
            emitter.load(self.owner)
        emitter.call_function(self.maker, arguments=1)
        emitter.call_function(advance, max(self.taken, 0), arguments=1)
