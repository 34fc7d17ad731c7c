"""Sets and frozensets.

The order in which a set is iterated depends on its history. `order` is a host set of the members' keys (see
`bytecap.objects.identity`) with the same history, and so in the order of CPython's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bytecap.bytecode.rebuild import new_set
from bytecap.errors import CannotRebuild
from bytecap.objects.base import Value, collect
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.dispatch import call_table_method
from bytecap.objects.identity import is_lasting_key, refuse_among_numbers
from bytecap.objects.iterators.protocols import ContainerIterator
from bytecap.objects.signals import NotConcrete
from stagewire.capture import Source

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.replacement.emit import Emitter


class SetValue(Value):
    """A set or frozenset: values by key.

    An outside set is unseen while nothing looked at its members: `look` guards and gives them, and what was added until
    then waits in `added`.
    """

    __slots__ = ("_look", "_members", "_order", "added", "cls", "mutated", "real")

    def __init__(
        self,
        members: dict[Hashable, Value],
        *,
        order: Any = None,
        cls: type = set,
        real: Any = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(source)
        self._look: Callable[[], SetValue] | None = None
        self._members = members
        self._order: Any = cls(members) if order is None else order
        self.added: list[tuple[Hashable, Value]] = []
        self.cls = cls
        self.real = real
        self.mutated = False

    @classmethod
    def unseen(cls, look: Callable[[], SetValue], real: Any, source: Source) -> SetValue:
        """An outside set whose members are known as soon as they matter."""
        made = cls({}, cls=type(real), real=real, source=source)
        made._look = look
        return made

    @property
    def is_unseen(self) -> bool:
        """Whether it is an outside set of any members, to which some were added at most."""
        return self._look is not None

    @property
    def members(self) -> dict[Hashable, Value]:
        """The members by their keys."""
        self._see()
        return self._members

    @property
    def order(self) -> Any:
        """The keys in the order of iteration."""
        self._see()
        return self._order

    @members.setter
    def members(self, members: dict[Hashable, Value]) -> None:
        self._members = members

    @order.setter
    def order(self, order: Any) -> None:
        self._order = order

    def _see(self) -> None:
        if self._look is None:
            return
        seen = self._look()
        self._look = None
        self._members, self._order = seen.members, seen.order
        if self.mutated:
            self._own_order()
        for key, item in self.added:
            self._add(key, item)

    def _own_order(self) -> None:
        if self._order is self.real:
            self._order = set(self.real)

    def _add(self, key: Hashable, item: Value) -> None:
        self._members.setdefault(key, item)
        self._order.add(key)

    def as_new(self) -> SetValue:
        """This set as one that the program made: nothing real stands behind it."""
        order = self.order.copy() if self.order is self.real else self.order
        return SetValue(self.members, order=order, cls=self.cls)

    def python_type(self) -> type:
        return self.cls

    def concrete(self) -> Any:
        if self.real is not None:
            if self.mutated:
                raise NotConcrete(self)
            return self.real
        return self.cls(member.concrete() for member in self.in_order())

    def in_order(self) -> list[Value]:
        """The members as iteration gives them."""
        return [self.members[key] for key in self.order]

    def mutate(self, tracer: Tracer) -> None:
        """Call before every change."""
        if self.real is not None and not self.mutated:
            self.mutated = True
            self._own_order()
            tracer.effects.append(self)

    def add(self, tracer: Tracer, item: Value) -> None:
        """Add a member; one that is equal stays."""
        key = tracer.objects.hash_key(item)
        self.mutate(tracer)
        if self.is_unseen:
            self.added.append((key, item))
        else:
            self._add(key, item)

    def discard(self, tracer: Tracer, key: Hashable) -> None:
        """Take the member with this key out, if there is one."""
        self.mutate(tracer)
        self.members.pop(key, None)
        self.order.discard(key)

    def length(self, tracer: Tracer) -> int:
        return len(self.members)

    def truth(self, tracer: Tracer) -> bool:
        return bool(self.members)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        if isinstance(item, SetValue) and item.cls is set:
            # CPython looks for a set as the frozenset that it equals.
            item = SetValue(dict(item.members), cls=frozenset)
        if tracer.objects.hash_key(item) in self.members:
            return True
        refuse_among_numbers(item, self.members.values())
        return False

    def iterate(self, tracer: Tracer) -> Value:
        return ContainerIterator(tracer, self)

    def host(self, tracer: Tracer) -> Any:
        """The keys of the members."""
        return self.order

    def given(self, tracer: Tracer, key: Hashable) -> Value:
        """The member with a key."""
        return self.members[key]

    def blank(self) -> Any:
        """An empty set."""
        return set()

    def stamp(self) -> int:
        """The number of members."""
        return len(self.members)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return call_table_method(tracer, self, name, args, kwargs)

    def reconstruct(self, emitter: Emitter) -> None:
        keys, holes = list(self.order), ()
        if all(map(is_lasting_key, keys)):  # nobody knows the order of objects in the order of their addresses
            keys, holes = _growth(self.cls, keys, list(self.members))
        for key in keys:
            emitter.load(self.members[key])
        emitter.build_tuple(len(keys))
        emitter.call_helper("new_set", self.cls, *([holes] if holes else []), arguments=1)


def set_in_order(cls: type, keys: list[Hashable]) -> Any:
    """A host set that is iterated in this order."""
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


Keys = tuple[Iterable[Hashable], dict[Hashable, Value]]


def keys_of(tracer: Tracer, values: Value) -> Keys:
    """(host keys in a container of the kind of `values`, values by key) of any iterable."""
    if isinstance(values, SetValue):
        return values.order, values.members
    members: dict[Hashable, Value] = {}
    keys = []
    for item in collect(tracer, values):
        key = tracer.objects.hash_key(item)
        members.setdefault(key, item)
        keys.append(key)
    # set.update() has ways of its own for sets and dicts, which end in other orders.
    return (dict.fromkeys(keys) if isinstance(values, DictValue) else keys), members


def combine(name: str, owner: SetValue, others: list[Keys]) -> SetValue:
    """What the method `name` (union, intersection, difference, symmetric_difference) makes of `owner`."""
    order = getattr(owner.order, name)(*[keys for keys, _ in others])
    if order is owner.real:
        order = owner.cls(order)
    # Of equal members, the host set has kept the key of the one that CPython keeps.
    sides = [members for _, members in others] + [owner.members]
    known = {id(key): value for members in sides for key, value in members.items()}
    members = {key: known.get(id(key)) or _equal_member(key, sides) for key in order}
    return SetValue(members, order=order, cls=owner.cls)


def _equal_member(key: Hashable, sides: list[dict[Hashable, Value]]) -> Value:
    return next(members[key] for members in reversed(sides) if key in members)
