"""Started iterators of CPython's from outside: what they give next is looked up in them, without asking them.

    iterator ::= iter() of a list, tuple, range or dict, or of a dict's keys(), values() or items()
               | enumerate(iterator) | zip(iterator*)

No guard fixes how far an iterator is, so that one capture is right in each pass of a loop. The replacement asks the
iterator as often as the program did, before it writes into what the items come from.
"""

from __future__ import annotations

from typing import Any

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.hook import has_upcoming, iterated, upcoming
from bytecap.objects.base import EXHAUSTED, IteratorValue, Value, state
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import Lazy, ListValue, TupleValue
from stagewire.capture import Item, Reading, Source

_OF_ITERATORS = (enumerate, zip)
_GIVE_TUPLES = (*_OF_ITERATORS, type(iter({}.items())))


class OutsideIterator(IteratorValue):
    """A started iterator.

    inner: the iterators that it takes from. taken: how many items the program took. ended: it found no more.
    taker: the iterator that takes from this one, if it has.
    """

    real: Any
    inner: tuple[OutsideIterator, ...] = ()
    taken: int = state(default=0)
    ended: bool = state(default=False)
    taker: OutsideIterator | None = state(default=None)
    mutated: bool = state(default=False)

    def python_type(self) -> type:
        return type(self.real)

    def next(self, tracer: Tracer) -> Any:
        if self.ended:
            return EXHAUSTED
        if self.taker is not None:
            raise UnsupportedCall(f"a {self.describe()} from outside that a {self.taker.describe()} takes from")
        self._check_unchanged(tracer)
        is_there = _is_there(self.real, self.taken)
        if is_there is None:
            raise UnsupportedCall(f"a {self.describe()} from outside, whose dict has changed")
        if not self.mutated:
            self._take_hold(tracer)
        place = Reading(tracer.names.of(upcoming), self.source, (self.taken,))
        asked = Reading(tracer.names.of(has_upcoming), self.source, (self.taken,))
        tracer.guards.literal(asked, is_there)
        if not is_there:
            self.ended = True
            return EXHAUSTED
        self.taken += 1
        item = upcoming(self.real, self.taken - 1)
        if self.python_type() not in _GIVE_TUPLES:
            return tracer.objects.wrap(item, place)
        if self.python_type() is zip:
            tracer.guards.length(place, len(item))
        return TupleValue([Lazy(part, Item(place, at)) for at, part in enumerate(item)])

    def _check_unchanged(self, tracer: Tracer) -> None:
        """The real list or dict does not show what the program has written into it."""
        for inner in self.inner:
            inner._check_unchanged(tracer)
        written = [effect.real for effect in tracer.effects if isinstance(effect, (ListValue, DictValue))]
        if not self.inner and any(container is real for container in iterated(self.real) for real in written):
            raise UnsupportedCall(f"a {self.describe()} from outside over what the program has changed")

    def _take_hold(self, tracer: Tracer) -> None:
        """The iterator changes, and with it those that it takes from."""
        for inner in self.inner:
            if inner.mutated:
                raise UnsupportedCall(f"a {self.describe()} from outside over an iterator that the program asks itself")
            inner.taker = self
            inner._take_hold(tracer)
        self.mutate(tracer)

    def look_at_container(self, tracer: Tracer, classes: frozenset[type]) -> None:
        """Make known which list or dict the items come from, if it is of one of these classes."""
        for at, container in enumerate(() if self.inner else iterated(self.real)):
            if type(container) in classes:
                tracer.objects.wrap(container, _origin(tracer, self.source, at))


def outside_iterator(tracer: Tracer, real: Any, source: Source) -> OutsideIterator | None:
    """The value of an iterator; None where it is of a kind that tells nothing of its items."""
    if _is_there(real, 0) is None:
        return None
    inner = [
        _inner_iterator(tracer, part, _origin(tracer, source, at))
        for at, part in enumerate(iterated(real) if type(real) in _OF_ITERATORS else ())
    ]
    if not all(isinstance(part, OutsideIterator) for part in inner):
        return None
    return OutsideIterator(real, tuple(inner), source=source)  # type: ignore[arg-type]


def _inner_iterator(tracer: Tracer, real: Any, source: Source) -> Value | None:
    """The iterator that another one takes from; of which kind it is, no guard asks."""
    objects = tracer.objects
    if id(real) in objects.by_object:
        return objects.wrap(real, source)
    made = outside_iterator(tracer, real, source)
    if made is not None:
        objects.by_object[id(real)] = made
        objects.alive.append(real)
    return made


def _origin(tracer: Tracer, source: Source | None, at: int) -> Source:
    return Item(Reading(tracer.names.of(iterated), source), at)


def _is_there(real: Any, at: int) -> bool | None:
    """Whether an iterator has more than `at` items left; None where that cannot be told."""
    try:
        return has_upcoming(real, at)
    except LookupError:
        return None
