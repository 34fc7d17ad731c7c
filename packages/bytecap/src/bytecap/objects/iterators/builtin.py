"""The iterators of `builtins`: over constants, reversed, zip, enumerate, map, filter.

Each holds what CPython's own object holds, so that an exception of a callback leaves it usable, nothing is read too
early, and the rest of it can be built again in replacement bytecode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bytecap.objects.base import IteratorValue, Value
from bytecap.objects.constant import Constant
from bytecap.objects.containers.sequences import TupleValue, resume_in_changed
from bytecap.objects.signals import EXHAUSTED, End

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.objects.containers.sequences import Sequence
    from bytecap.replacement.emit import Emitter


class ReverseIterator(IteratorValue):
    """reversed(list or tuple): sees changes of a list while it runs, as CPython's does."""

    __slots__ = ("index", "sequence")

    def __init__(self, sequence: Sequence) -> None:
        super().__init__()
        self.sequence = sequence
        self.index = len(sequence.items) - 1

    def python_type(self) -> type:
        return type(reversed(self.sequence.builtin()))

    def next(self, tracer: Tracer) -> Any:
        if not 0 <= self.index < len(self.sequence.items):
            self.index = -1
            return EXHAUSTED
        self.index -= 1
        return self.sequence.item(tracer, self.index + 1)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load(self.sequence)
        emitter.constant(self.index)
        emitter.call_helper("resume_reversed", arguments=2)
        if self.index >= 0:
            resume_in_changed(emitter, self, self.sequence, self.index)


class OverIterators(IteratorValue):
    """An iterator over other iterators; `class_` is CPython's class of it."""

    __slots__ = ("iterators",)
    class_: type = zip

    def __init__(self, iterators: list[Value]) -> None:
        super().__init__()
        self.iterators = iterators

    def python_type(self) -> type:
        return self.class_

    def load_all(self, emitter: Emitter) -> int:
        """Push every iterator; their number."""
        for iterator in self.iterators:
            emitter.load(iterator)
        return len(self.iterators)

    def row(self, tracer: Tracer) -> list[Value] | None:
        """One item of each; None when one has ended."""

        row = []
        for iterator in self.iterators:
            item = iterator.next(tracer)
            if isinstance(item, End):
                return None
            row.append(item)
        return row


class ZipIterator(OverIterators):
    """zip()."""

    __slots__ = ("strict",)

    def __init__(self, iterators: list[Value], strict: bool = False) -> None:
        super().__init__(iterators)
        self.strict = strict

    def next(self, tracer: Tracer) -> Any:
        row = []
        for position, iterator in enumerate(self.iterators):
            item = iterator.next(tracer)
            if not isinstance(item, End):
                row.append(item)
                continue
            if self.strict:
                self._check_lengths(tracer, position)
            return EXHAUSTED
        return TupleValue(row) if row else EXHAUSTED

    def _check_lengths(self, tracer: Tracer, ended: int) -> None:

        if ended:
            raise tracer.raises(ValueError, _length_complaint(ended, "shorter"))
        for position, iterator in enumerate(self.iterators[1:], 1):
            if not isinstance(iterator.next(tracer), End):
                raise tracer.raises(ValueError, _length_complaint(position, "longer"))

    def reconstruct(self, emitter: Emitter) -> None:
        count = self.load_all(emitter)
        emitter.build_tuple(count)
        emitter.call_helper("new_zip", self.strict, arguments=1)


def _length_complaint(position: int, what: str) -> str:
    others = "argument 1" if position == 1 else f"arguments 1-{position}"
    return f"zip() argument {position + 1} is {what} than {others}"


class EnumerateIterator(OverIterators):
    """enumerate()."""

    __slots__ = ("count",)
    class_ = enumerate

    def __init__(self, iterator: Value, start: int) -> None:
        super().__init__([iterator])
        self.count = start

    def next(self, tracer: Tracer) -> Any:
        row = self.row(tracer)
        if row is None:
            return EXHAUSTED
        self.count += 1
        return TupleValue([Constant(self.count - 1), *row])

    def reconstruct(self, emitter: Emitter) -> None:
        self.load_all(emitter)
        emitter.call_function(enumerate, self.count, arguments=1)


class FunctionIterator(OverIterators):
    """A callback and iterators: what map, filter and several of itertools hold."""

    __slots__ = ("function",)

    def __init__(self, function: Value, iterators: list[Value]) -> None:
        super().__init__(iterators)
        self.function = function

    def holds(self, tracer: Tracer, item: Value) -> bool:
        """The callback as a test; None tests the item itself."""

        return (item if self.function.is_none() else self.function.call(tracer, [item], {})).truth(tracer)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load(self.function)
        emitter.call_function(self.class_, arguments=1 + self.load_all(emitter))


class MapIterator(FunctionIterator):
    """map()."""

    __slots__ = ()
    class_ = map

    def next(self, tracer: Tracer) -> Any:
        row = self.row(tracer)
        return EXHAUSTED if row is None else self.function.call(tracer, row, {})


class FilterIterator(FunctionIterator):
    """filter(), and filterfalse() of itertools."""

    __slots__ = ()
    class_ = filter
    wanted = True

    def next(self, tracer: Tracer) -> Any:
        while (row := self.row(tracer)) is not None:
            tracer.frames.count_iteration()
            if self.holds(tracer, row[0]) is self.wanted:
                return row[0]
        return EXHAUSTED
