"""Sets, frozensets and deques: what they hold lies in a host container, on which CPython's own methods run.

A set is a host set of its members' keys (see `objects.identity`). The order in which it is iterated depends on its
history, which is thus that of CPython's own. The items of a deque lie in a host deque, which keeps the bound and knows
of changes while it is iterated.
"""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any, ClassVar

from bytecap.bytecode.rebuild import new_set
from bytecap.context_types import Emitter, KnownObjects, Tracer
from bytecap.errors import CannotRebuild, UnsupportedMutation
from bytecap.objects.base import Constant, NotConcrete, Value, run, state
from bytecap.objects.containers.mappings import DictValue, DictView
from bytecap.objects.containers.sequences import ListValue, Sequence, SliceValue, one_by_one
from bytecap.objects.identity import is_lasting_key, refuse_among_numbers
from bytecap.objects.iterators import ContainerIterator


class SetValue(Value):
    """A set or frozenset; `keys` is a host one, of the keys that `objects.of_key` knows the members of.

    look: guards an outside set and gives its keys, called as soon as they matter. While it was not called, the set is
    unseen. added: members that the code added one by one.
    """

    objects: KnownObjects
    _keys: Any
    _look: Callable[[], Any] | None = None
    real: Any = None
    added: list[Value] = state(default_factory=list)
    cls: type = state()
    mutated: bool = state(default=False)
    _is_fixed: bool = state(default=False)  # iterated over as it is outside

    def __post_init__(self) -> None:
        self.cls = type(self._keys)

    @property
    def is_unseen(self) -> bool:
        """Whether it is an outside set of any members, to which some were added at most."""
        return self._look is not None

    @property
    def keys(self) -> Any:
        """The keys of the members in the order of iteration."""
        if self._look is not None:
            self._keys, self._look = self._look(), None
            if self.mutated:
                self._own_keys()
            self._keys.update(map(self.objects.key_of, self.added))
        return self._keys

    def _own_keys(self) -> None:
        if self._keys is self.real:
            if self._is_fixed:
                raise UnsupportedMutation("a change of an outside set that was iterated, in the order that it grew in")
            self._keys = set(self.real)

    def concrete(self) -> Any:
        if self.real is not None:
            if self.mutated:
                raise NotConcrete(self)
            return self.real
        return self.cls(member.concrete() for member in self.in_order())

    def in_order(self) -> list[Value]:
        """The members as iteration gives them."""
        return [self.objects.of_key(key) for key in self.keys]

    def mutate(self, tracer: Tracer) -> None:
        super().mutate(tracer)
        self._own_keys()

    def add(self, tracer: Tracer, item: Value) -> None:
        """Add a member; one that is equal stays."""
        key = self.objects.key_of(item)
        self.mutate(tracer)
        self.added.append(item)
        if not self.is_unseen:
            self._keys.add(key)

    def lookup_key(self, item: Value) -> Hashable:
        """The key of what is looked for: CPython looks for a set as the frozenset that it equals."""
        is_set = isinstance(item, SetValue) and item.cls is set
        return frozenset(item.keys) if is_set else self.objects.key_of(item)  # type: ignore[attr-defined]

    def length(self, tracer: Tracer) -> int:
        return len(self.keys)

    def truth(self, tracer: Tracer) -> bool:
        return bool(self.keys)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        if self.lookup_key(item) in self.keys:
            return True
        refuse_among_numbers(item, self.in_order())
        return False

    def iterate(self, tracer: Tracer) -> Value:
        if self.keys is self.real and self.cls is set:
            # In an own set, if it has their order, so that iterators see changes.
            copy = set(self.real)
            self._is_fixed = list(copy) != list(self.real)
            self._keys = self.real if self._is_fixed else copy
        return ContainerIterator(self, iter(self.keys), self.objects.of_key, lambda: len(self.keys))

    def reconstruct(self, emitter: Emitter) -> None:
        keys, holes = list(self.keys), ()
        # Nobody knows the order of objects in the order of their addresses.
        if all(is_lasting_key(self.objects.hash_key(member)) for member in self.in_order()):
            added = map(self.objects.key_of, self.added)
            keys, holes = _growth(self.cls, keys, [key for key in added if key in self.keys])
        emitter.call_with(new_set, tuple(map(self.objects.of_key, keys)), self.cls, holes)


def set_in_order(cls: type, keys: list[Hashable]) -> Any:
    """A host set that is iterated in this order."""
    for made in (cls(keys), cls(dict.fromkeys(keys))):  # grown, or a copy, whose size was known
        if list(made) == keys:
            return made
    grown, holes = _growth(cls, keys, keys)
    return new_set(tuple(grown), cls, holes)


def _growth(cls: type, wanted: list[Hashable], inserted: list[Hashable]) -> tuple[list[Hashable], tuple[int, ...]]:
    """(order of insertion, holes) for `new_set` such that the set is iterated in the wanted order."""
    for keys in (wanted, inserted, *map(list, itertools.islice(itertools.permutations(reversed(wanted)), 5040))):
        if list(cls(keys)) == wanted:
            return keys, ()
    if cls is set:
        for holes in _holes(len(wanted)):
            if list(new_set(tuple(wanted), set, holes)) == wanted:
                return wanted, holes
    raise CannotRebuild("a set whose order of iteration depends on how it grew and shrank")


def _holes(size: int) -> Iterator[tuple[int, ...]]:
    """One member that went from any place of the table, or several of its first."""
    places = max(8, 8 * size)
    for place in range(places):
        yield (place,)
    for count in range(2, places):
        yield tuple(range(count))


def keys_of(tracer: Tracer, values: Value) -> Any:
    """The keys of any iterable, in a host container of its kind; others give them one by one."""
    if isinstance(values, SetValue):
        return values.keys
    keys = (tracer.objects.key_of(item) for item in one_by_one(tracer, values))
    # C has ways of its own for sets, dicts and views, which end in other orders.
    if isinstance(values, (DictValue, DictView)):
        pairs = dict.fromkeys(keys)
        return pairs if isinstance(values, DictValue) else pairs.keys()
    return keys


class DequeValue(ListValue):
    """A deque; `maxlen` None means no bound. `changes`: how often it was changed."""

    maxlen: int | None = None
    changes: int = state(default=0)
    builtin = deque
    parts: ClassVar = {"maxlen": lambda tracer, self: Constant(self.maxlen)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.items = deque(self._items, self.maxlen)
        self.added = deque(maxlen=self.maxlen)

    def concrete(self) -> Any:
        if self.real is not None and self.mutated:
            raise NotConcrete(self)
        return deque(self.concrete_items(), self.maxlen)

    def like(self, items: list[Any], cls: type | None = None) -> Sequence:
        return DequeValue(items, maxlen=self.maxlen)

    def mutate(self, tracer: Tracer) -> None:
        self.changes += 1
        super().mutate(tracer)

    def replace(self, items: list[Any]) -> None:
        self.items.clear()
        self.items.extend(items)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        if isinstance(key, SliceValue):
            run(tracer, operator.getitem, (deque(), slice(None)))
        return super().get_item(tracer, key)

    def iterate(self, tracer: Tracer, maker: Callable[[Any], Any] = iter) -> Value:
        return ContainerIterator(self, maker(self.items), tracer.objects.fresh, lambda: self.changes, maker)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_with(deque, self.values(emitter.tracer), self.maxlen)
