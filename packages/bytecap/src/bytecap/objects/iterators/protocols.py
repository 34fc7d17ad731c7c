"""Iterators over evaluated objects: `__next__` objects, the old `__getitem__` protocol, iter(callable, sentinel)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bytecap.objects.base import IteratorValue, Value

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.replacement.emit import Emitter


class ObjectIterator(IteratorValue):
    """An evaluated object with `__next__`."""

    __slots__ = ("target",)

    def __init__(self, target: Value) -> None:
        super().__init__()
        self.target = target

    def python_type(self) -> type:
        return self.target.python_type()

    def next(self, tracer: Tracer) -> Any:
        return self.target.next(tracer)

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        return self.target.get_attribute(tracer, name)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load(self.target)
