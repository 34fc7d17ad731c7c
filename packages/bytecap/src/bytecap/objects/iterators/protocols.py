"""Iterators over evaluated objects: `__next__` objects, the old `__getitem__` protocol, iter(callable, sentinel)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bytecap.objects.base import IteratorValue, Value
from bytecap.objects.constant import Constant
from bytecap.objects.signals import EXHAUSTED, PythonRaise

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


class ItemIterator(IteratorValue):
    """Iteration by `__getitem__(0), __getitem__(1), ...` until IndexError; backwards for reversed()."""

    __slots__ = ("index", "step", "target")

    def __init__(self, target: Value, index: int = 0, step: int = 1) -> None:
        super().__init__()
        self.target = target
        self.index = index
        self.step = step

    def python_type(self) -> type:
        return reversed if self.step < 0 else type(iter(_Items()))

    def next(self, tracer: Tracer) -> Any:
        if self.index < 0:
            return EXHAUSTED
        try:
            item = self.target.get_item(tracer, Constant(self.index))
        except PythonRaise as error:
            if issubclass(error.value.python_type(), (IndexError, StopIteration)):
                self.index = -1
                return EXHAUSTED
            raise
        self.index += self.step
        return item

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load(self.target)
        emitter.constant(self.index)
        emitter.call_helper("resume_sequence" if self.step > 0 else "resume_reversed", arguments=2)


class _Items:
    """For the class of iterators over `__getitem__`."""

    def __getitem__(self, index: int) -> Any:
        raise IndexError(index)


class CallIterator(IteratorValue):
    """iter(callable, sentinel)."""

    __slots__ = ("ended", "function", "sentinel")

    def __init__(self, function: Value, sentinel: Value) -> None:
        super().__init__()
        self.function = function
        self.sentinel = sentinel
        self.ended = False

    def python_type(self) -> type:
        return type(iter(int, 1))

    def next(self, tracer: Tracer) -> Any:

        if self.ended:
            return EXHAUSTED
        try:
            item = self.function.call(tracer, [], {})
        except PythonRaise as error:
            if not issubclass(error.value.python_type(), StopIteration):
                raise
            self.ended = True
            return EXHAUSTED
        self.ended = tracer.evaluate.equal(tracer, item, self.sentinel)
        return EXHAUSTED if self.ended else item

    def reconstruct(self, emitter: Emitter) -> None:
        if self.ended:
            emitter.constant(())
            emitter.call_function(iter, arguments=1)
            return
        emitter.load(self.function)
        emitter.load(self.sentinel)
        emitter.call_function(iter, arguments=2)
