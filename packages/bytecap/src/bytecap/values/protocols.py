"""Iterators over evaluated objects: `__next__` objects, the old `__getitem__` protocol, iter(callable, sentinel)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bytecap.signals import EXHAUSTED, PythonRaise
from bytecap.values.base import IteratorValue, Value
from bytecap.values.constant import Constant

if TYPE_CHECKING:
    from bytecap.emit import Emitter
    from bytecap.tracer import Tracer


class ObjectIterator(IteratorValue):
    """An evaluated object with `__next__`."""

    __slots__ = ("target",)

    def __init__(self, target: Value) -> None:
        super().__init__()
        self.target = target

    def python_type(self) -> type:
        return self.target.python_type()

    def next(self, tracer: Tracer) -> Any:
        try:
            return self.target.get_attribute(tracer, "__next__").call(tracer, [], {})
        except PythonRaise as error:
            if issubclass(error.value.python_type(), StopIteration):
                return EXHAUSTED
            raise

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        return self.target.get_attribute(tracer, name)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load(self.target)


class ItemIterator(IteratorValue):
    """Iteration by `__getitem__(0), __getitem__(1), ...` until IndexError."""

    __slots__ = ("index", "target")

    def __init__(self, target: Value) -> None:
        super().__init__()
        self.target = target
        self.index = 0

    def python_type(self) -> type:
        return type(iter([]))

    def next(self, tracer: Tracer) -> Any:
        try:
            item = self.target.get_item(tracer, Constant(self.index))
        except PythonRaise as error:
            if issubclass(error.value.python_type(), (IndexError, StopIteration)):
                return EXHAUSTED
            raise
        self.index += 1
        return item


class CallIterator(IteratorValue):
    """iter(callable, sentinel)."""

    __slots__ = ("function", "sentinel")

    def __init__(self, function: Value, sentinel: Value) -> None:
        super().__init__()
        self.function = function
        self.sentinel = sentinel

    def python_type(self) -> type:
        return type(iter(int, 1))

    def next(self, tracer: Tracer) -> Any:
        from bytecap.operations import compare, truth

        item = self.function.call(tracer, [], {})
        return EXHAUSTED if truth(tracer, compare(tracer, "==", item, self.sentinel)) else item
