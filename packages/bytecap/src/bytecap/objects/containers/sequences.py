"""Lists, tuples (also namedtuples, torch.Size, torch.return_types) and slices."""

from __future__ import annotations

import operator
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch

from bytecap.bytecode.rebuild import new_tuple, placed, resumed
from bytecap.context_types import Emitter, Tracer
from bytecap.objects.base import EXHAUSTED, Constant, Declared, IteratorValue, NotConcrete, Value, collect, run, state
from bytecap.objects.class_lookup import static_lookup, stranger
from stagewire.capture import Source


class Lazy(metaclass=Declared):
    """An item that has not been looked at: no guard exists for it yet."""

    real: Any
    source: Source | None


class Sequence(Value):
    """What lists and tuples share; `items` may hold `Lazy` entries."""

    items: list[Any]
    cls: Any = None
    real: Any = None
    builtin: ClassVar[type] = list

    def __post_init__(self) -> None:
        self.cls = self.cls or self.builtin

    def item(self, tracer: Tracer, index: int) -> Value:
        """The item at a valid index."""
        found = self.items[index]
        if isinstance(found, Lazy):
            found = tracer.objects.wrap(found.real, found.source)
            self.items[index] = found
        return found

    def values(self, tracer: Tracer) -> list[Value]:
        """All items."""
        return [self.item(tracer, index) for index in range(len(self.items))]

    def stand_in(self) -> Any:
        return new_tuple([None] * len(self.items), self.cls) if hasattr(self.cls, "_make") else self.builtin()

    def concrete_items(self) -> list[Any]:
        return [item.real if isinstance(item, Lazy) and item.source is None else _concrete(item) for item in self.items]

    def length(self, tracer: Tracer) -> int:
        return len(self.items)

    def truth(self, tracer: Tracer) -> bool:
        return bool(self.items)

    def iterate(self, tracer: Tracer) -> Value:
        return SequenceIterator(self)

    def each(self, tracer: Tracer) -> Iterator[Value]:
        index = 0
        while index < len(self.items):
            yield self.item(tracer, index)
            index += 1

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        index = self._index(tracer, key, operator.getitem)
        if isinstance(index, slice):
            positions = run(tracer, range(len(self.items)).__getitem__, (index,))
            if self.cls is tuple and len(positions) == len(self.items) and positions.step == 1:
                return self
            return self.like([self.items[i] for i in positions], torch.Size if self.cls is torch.Size else None)
        size = len(self.items)
        if not -size <= index < size:
            raise tracer.raises(IndexError, f"{self.builtin.__name__} index out of range")
        return self.item(tracer, index % size)

    def _index(self, tracer: Tracer, key: Value, function: Callable[..., Any], *item: Any) -> Any:
        """The int or slice of ints that a subscript is; else what CPython's `function` says of it is raised."""
        if not isinstance(key, SliceValue) and not hasattr(key.python_type(), "__index__"):
            run(tracer, function, (self.builtin((0,)), stranger(key), *item))
        return key.as_index(tracer)

    def like(self, items: list[Any], cls: type | None = None) -> Sequence:
        """A new sequence of this kind; a named tuple becomes a plain one."""
        return type(self)(items, cls=cls)


def _concrete(item: Any) -> Any:
    if isinstance(item, Lazy):
        raise NotConcrete(item)
    return item.concrete()


class TupleValue(Sequence):
    """A tuple; `cls` may be a namedtuple class, torch.Size or a struct sequence."""

    builtin = tuple

    def concrete(self) -> Any:
        if self.real is not None and self.source is None:
            return self.real
        return new_tuple(self.concrete_items(), self.cls)

    def describe(self) -> str:
        return f"{self.cls.__name__} of {len(self.items)} items"

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        names = field_names(self.cls)
        if name in names and isinstance(static_lookup(self.cls.__mro__, name)[0], _FIELDS):
            tracer.guards.lookup(self.cls, name)
            return self.item(tracer, names.index(name))
        return super().get_attribute(tracer, name)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.push(tuple(self.values(emitter.tracer)))
        if self.cls is not tuple:
            emitter.call_function(new_tuple, self.cls, arguments=1)


class ListValue(Sequence):
    """A list.

    pin: guards the length of an outside list, called as soon as its items are looked at. While it was not called, the
    list is unseen: what is appended waits in `added`.
    """

    _pin: Callable[[], None] | None = None
    _items: list[Any] = state()
    added: Any = state(default_factory=list)
    mutated: bool = state(default=False)

    @property
    def items(self) -> list[Any]:  # type: ignore[override]
        """The items; the length of an outside list is guarded."""
        if self._pin is not None:
            self._pin()
            self._pin = None
            self.add(self.added)
        return self._items

    @items.setter
    def items(self, items: list[Any]) -> None:
        self._items = items

    @property
    def is_unseen(self) -> bool:
        """Whether it is an outside list of any length, at whose end items were put at most."""
        return self._pin is not None

    def add(self, items: list[Value]) -> None:
        """Put items at the end; call `mutate` before."""
        if self._pin is not None:
            self.added.extend(items)
        else:
            self.items.extend(items)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        if self.is_unseen and self.added and isinstance(key, Constant) and key.python_type() is int:
            index = key.value
            if -len(self.added) <= index < 0:
                return self.added[index]
        return super().get_item(tracer, key)

    def concrete(self) -> Any:
        if self.real is not None and self.mutated:
            raise NotConcrete(self)
        if self.real is not None and self.source is None:
            return self.real
        return self.cls(self.concrete_items())

    def replace(self, items: list[Any]) -> None:
        """Put these items in the place of all; call `mutate` before."""
        self.items[:] = items

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        index = self._index(tracer, key, operator.setitem, 0)
        items: Any = value
        if not isinstance(index, int):
            if not value.is_iterable():
                raise tracer.raises(TypeError, "can only assign an iterable")
            items = collect(tracer, value)
        self.mutate(tracer)
        run(tracer, self.items.__setitem__, (index, items))

    def delete_item(self, tracer: Tracer, key: Value) -> None:
        index = self._index(tracer, key, operator.delitem)
        self.mutate(tracer)
        run(tracer, self.items.__delitem__, (index,))

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.push(self.values(emitter.tracer))


class SequenceIterator(IteratorValue):
    """iter() or reversed() of a list or tuple; sees changes of a list while it runs. Once ended it stays so."""

    sequence: Sequence
    index: int = 0
    step: int = 1

    def python_type(self) -> type:
        return type(self._maker(self.sequence.builtin()))

    @property
    def _maker(self) -> Any:
        return iter if self.step > 0 else reversed

    def next(self, tracer: Tracer) -> Any:
        if not 0 <= self.index < len(self.sequence.items):
            self.sequence, self.index = type(self.sequence)([]), -1
            return EXHAUSTED
        self.index += self.step
        return self.sequence.item(tracer, self.index - self.step)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_with(resumed, self.sequence, self._maker, self.index)
        resume_in_changed(emitter, self, self.sequence, self.index)


def resume_in_changed(emitter: Emitter, iterator: IteratorValue, sequence: Sequence, index: int) -> None:
    """An iterator over an outside list finds its place when the list has become what the program makes of it."""
    if index < 0 or not isinstance(sequence, ListValue) or sequence.real is None or not sequence.mutated:
        return

    def move(emitter: Emitter) -> None:
        emitter.call_with(placed, iterator, sequence, index)
        emitter.pop()

    emitter.settling.append(move)


class SliceValue(Value):
    """A slice whose bounds may be any values."""

    start: Value
    stop: Value
    step: Value
    cls = slice
    parts: ClassVar = {
        "start": lambda tracer, self: self.start,
        "stop": lambda tracer, self: self.stop,
        "step": lambda tracer, self: self.step,
    }

    def concrete(self) -> slice:
        return slice(self.start.concrete(), self.stop.concrete(), self.step.concrete())

    def as_index(self, tracer: Tracer) -> slice:
        return slice(*(None if x.is_none() else x.as_int(tracer) for x in (self.start, self.stop, self.step)))

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tracer.evaluate.fold_call(tracer, getattr(self.concrete(), name), args, kwargs)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_with(slice, self.start, self.stop, self.step)


# What reads a field of a namedtuple, or of a structure of C's.
_FIELDS = (type(namedtuple("_Pair", "first").first), types.MemberDescriptorType)  # type: ignore[attr-defined]


def field_names(cls: type) -> tuple[str, ...]:
    """Attribute names of a namedtuple or struct sequence, in order."""
    if cls is tuple or cls is torch.Size:
        return ()
    names = getattr(cls, "_fields", None)
    if names is None:
        names = getattr(cls, "__match_args__", ())
    return tuple(names)


def one_by_one(tracer: Tracer, value: Value) -> Any:
    """The items as `extend` and `update` take them: a sequence's at once; other iterators see what they have filled."""
    return collect(tracer, value) if isinstance(value, Sequence) else value.each(tracer)
