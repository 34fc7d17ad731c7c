"""Iterators that the evaluator drives: over host generators, and generator frames of the evaluated program."""

from __future__ import annotations

from collections.abc import Iterator
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from bytecap.signals import EXHAUSTED, End, PythonRaise, Yielded
from bytecap.values.base import IteratorValue, Value
from bytecap.values.constant import Constant

if TYPE_CHECKING:
    from bytecap.emit import Emitter
    from bytecap.frame import Frame
    from bytecap.tracer import Tracer


_RANGE_ITERATOR = type(iter(range(0)))


class HostIterator(IteratorValue):
    """Any iterator (range, zip, enumerate, map...) as a host iterator over Values."""

    __slots__ = ("cls", "items")

    def __init__(self, items: Iterator[Value], cls: type = _RANGE_ITERATOR) -> None:
        super().__init__()
        self.items = items
        self.cls = cls

    def python_type(self) -> type:
        return self.cls

    def next(self, tracer: Tracer) -> Any:
        return next(self.items, EXHAUSTED)

    def reconstruct(self, emitter: Emitter) -> None:
        rest = list(self.items)
        self.items = iter(rest)
        for item in rest:
            emitter.load(item)
        emitter.build_tuple(len(rest))
        emitter.call_helper("new_iterator", arguments=1)


class GeneratorValue(IteratorValue):
    """A generator: a frame that stops at each yield."""

    __slots__ = ("finished", "frame", "started")

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.frame = frame
        self.started = False
        self.finished = False

    def python_type(self) -> type:
        return GeneratorType

    def next(self, tracer: Tracer) -> Any:
        return self.send(tracer, Constant(None))

    def send(self, tracer: Tracer, value: Value) -> Any:
        """Resume; the yielded Value, or End(return value)."""
        if self.finished:
            return EXHAUSTED
        return self._run(tracer, lambda: self.frame.resume(value, first=not self.started))

    def throw(self, tracer: Tracer, error: PythonRaise) -> Any:
        """Resume by raising inside; the yielded Value, or End(return value)."""
        if self.finished or not self.started:
            self.finished = True
            raise error
        return self._run(tracer, lambda: self.frame.throw(error))

    def _run(self, tracer: Tracer, resume: Any) -> Any:
        try:
            with tracer.entering(self.frame):
                result = resume()
        except PythonRaise:
            self.finished = True
            raise
        self.started = True
        if isinstance(result, Yielded):
            return result.value
        self.finished = True
        return End(result)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from bytecap.operations import result_or_stop

        match name:
            case "send":
                return result_or_stop(tracer, self.send(tracer, args[0]))
            case "throw":
                return result_or_stop(tracer, self.throw(tracer, tracer.as_raise(args)))
            case "close":
                return self._close(tracer)
            case _:
                return super().call_method(tracer, name, args, kwargs)

    def _close(self, tracer: Tracer) -> Value:
        if self.started and not self.finished:
            try:
                self.throw(tracer, tracer.raises(GeneratorExit))
            except PythonRaise as error:
                if not issubclass(error.value.python_type(), (GeneratorExit, StopIteration)):
                    raise
        self.finished = True
        return Constant(None)

    def reconstruct(self, emitter: Emitter) -> None:
        from bytecap.errors import CannotRebuild

        raise CannotRebuild("cannot return a suspended generator from replacement bytecode")
