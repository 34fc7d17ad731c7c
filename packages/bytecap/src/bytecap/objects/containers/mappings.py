"""Dicts (also OrderedDict and defaultdict) and their views.

A `DictValue` that stands for an outside dict is read lazily: looking up one literal key guards that key alone;
iterating, measuring or deleting guards all keys. The same class models attribute dictionaries, module globals and
nn.Module registries; `item_source` says where the value under a key is read.
"""

from __future__ import annotations

import operator
import os
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from types import MappingProxyType
from typing import Any

from bytecap.bytecode.rebuild import stored_items
from bytecap.context_types import Emitter, Tracer
from bytecap.errors import UnsupportedCall
from bytecap.objects.base import Constant, NotConcrete, Value, passed_on, state
from bytecap.objects.containers.sequences import TupleValue
from bytecap.objects.identity import holds_identity, refuse_among_numbers, with_number
from bytecap.objects.iterators import ContainerIterator
from stagewire.capture import Source

DICT_TYPES = (dict, OrderedDict, defaultdict)
ItemSource = Callable[[Any, int], "Source | None"]


_NAMED = frozenset({int, float, bool, str, type(None)})


def can_name(key: Any) -> bool:
    """Whether a source can name the item under a key (else it is found by its position)."""
    return type(key) in _NAMED


class DictValue(Value):
    """A dict: `new` holds (key, value) pairs made or read during capture, by hashable key."""

    cls: type = dict
    real: dict[Any, Any] | None = None
    item_source: ItemSource | None = None
    factory: Value | None = None
    new: dict[Hashable, tuple[Value, Value]] = state()
    written: dict[Hashable, bool] = state(default_factory=dict)
    # Keys that were stored without a look at what was there.
    blind: set[Hashable] = state(default_factory=set)
    # Stores in an outside dict that nothing looked at, under keys whose value nothing fixes.
    unsettled: list[tuple[Constant, Value]] = state(default_factory=list)
    listed: bool = state()
    mutated: bool = state(default=False)
    # An outside dict in which a key left its place (deleted and stored again, moved to an end).
    reordered: bool = state(default=False)
    owner: Value | None = state(default=None)
    # Attributes that the code gave to an OrderedDict of its own.
    own: dict[str, Value] = state(default_factory=dict)

    def __post_init__(self) -> None:
        self.new = OrderedDict() if self.cls is OrderedDict else {}
        self.listed = self.real is None

    def concrete(self) -> Any:
        if self.real is not None:
            if self.mutated:
                raise NotConcrete(self)
            return self.real
        if self.own:
            raise NotConcrete(self)
        pairs = {key.concrete(): value.concrete() for key, value in self.new.values()}
        return self.cls(None, pairs) if self.cls is defaultdict else self.cls(pairs)

    # -- reading

    def lookup(self, tracer: Tracer, key: Value) -> Value | None:
        """The value under `key`, or None; guards the presence of the key."""
        self._settle(tracer)
        code = tracer.objects.hash_key(key)
        if code not in self.new and type(code) is not str:
            if self.real is not None:
                key = with_number(tracer, key)
                code = tracer.objects.hash_key(key)
            if code not in self.new and holds_identity(key):
                refuse_among_numbers(key, [other for other, _ in self.pairs(tracer)])
        if code in self.new:
            return self.new[code][1]
        if self.listed or self.real is None or code in self.written:
            return None
        try:
            real_key = key.concrete()
        except NotConcrete:
            # A new object: equal, if at all, by its own `__eq__`.
            self.list_keys(tracer)
            return self.new[code][1] if code in self.new else None
        if self.real is _ENVIRONMENT:
            guard_variable(tracer, real_key)  # which says all; others may come and go
            return self._read(tracer, real_key, self.real[real_key], None) if real_key in self.real else None
        if self.source is not None and not can_name(real_key):
            return self._lookup_by_position(tracer, code)
        if not dict.__contains__(self.real, real_key):
            tracer.guards.dict_key(self, real_key, present=False)
            return None
        return self._read(tracer, real_key, dict.__getitem__(self.real, real_key), None)

    def _lookup_by_position(self, tracer: Tracer, code: Hashable) -> Value | None:
        """The value under a key that no source can name: all keys are guarded, so that its place is known."""
        tracer.guards.dict_keys(self)
        for index, (real_key, real) in enumerate(stored_items(self.real)):
            if tracer.objects.hash_key(tracer.objects.wrap(real_key, None)) == code:
                return self._read(tracer, real_key, real, index)
        return None

    def _read(self, tracer: Tracer, real_key: Any, real: Any, index: int | None) -> Value:
        key = tracer.objects.wrap(real_key, None)
        source = self.item_source(real_key, index) if self.item_source else None
        value = tracer.objects.wrap(real, source)
        self.new[tracer.objects.hash_key(key)] = (key, value)
        return value

    def list_keys(self, tracer: Tracer) -> None:
        """Make `new` complete and in the dict's order; guards the keys of an outside dict."""
        self._settle(tracer)
        if self.listed:
            return
        if self.real is _ENVIRONMENT:
            guard_all(tracer)
        tracer.guards.dict_keys(self)
        added, self.new = self.new, type(self.new)()
        for index, (real_key, real) in enumerate(stored_items(self.real)):
            code = tracer.objects.hash_key(tracer.objects.wrap(real_key, None))
            if code in added:
                self.new[code] = (tracer.objects.wrap(real_key, None), added.pop(code)[1])
            elif code not in self.written:
                self._read(tracer, real_key, real, index)
        self.new.update(added)
        self.listed = True

    def pairs(self, tracer: Tracer) -> list[tuple[Value, Value]]:
        """All items in order."""
        self.list_keys(tracer)
        return list(self.new.values())

    def length(self, tracer: Tracer) -> int:
        self._settle(tracer)
        if not self.listed and not self.written and self.real is not None:
            tracer.guards.dict_length(self)
            return dict.__len__(self.real)
        self.list_keys(tracer)
        return len(self.new)

    def truth(self, tracer: Tracer) -> bool:
        return self.length(tracer) > 0

    def contains(self, tracer: Tracer, item: Value) -> bool:
        return self.lookup(tracer, item) is not None

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name == "default_factory" and self.cls is defaultdict:
            return self.factory or Constant(None)
        if name in self.own:
            return self.own[name]
        if isinstance(self.real, OrderedDict) and not hasattr(OrderedDict, name):
            if name in vars(self.real):
                return tracer.objects.wrap(vars(self.real)[name], tracer.places.attribute(self.source, name))
            tracer.guards.lacks(self.source, name)
        return super().get_attribute(tracer, name)

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        if self.cls is not OrderedDict or self.real is not None or hasattr(OrderedDict, name):
            super().set_attribute(tracer, name, value)
        self.own[name] = value

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        found = self.lookup(tracer, key)
        return self.missing(tracer, key) if found is None else found

    def missing(self, tracer: Tracer, key: Value) -> Value:
        """What `__missing__` of the builtin class does."""
        if self.factory is not None:
            made = self.factory.call(tracer, [], {})
            self.set_item(tracer, key, made)
            return made
        raise tracer.raises(KeyError, key)

    def iterate(self, tracer: Tracer) -> Value:
        return DictView(self, "keys").iterate(tracer)

    # -- writing

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        is_untouched = self.real is not None and self.owner is None and not (self.listed or self.new or self.written)
        if is_untouched and isinstance(key, Constant) and key.is_open:
            self.mutate(tracer)
            self.unsettled.append((key, value))
            return
        self._settle(tracer)
        code = tracer.objects.hash_key(key)
        is_seen = self.real is None or self.listed or code in self.new or code in self.written
        if not is_seen and isinstance(key, Constant):
            self.blind.add(code)
        else:
            self.lookup(tracer, key)
        self.mutate(tracer)
        old = self.new.get(code)
        if self.real is not None and old is None and code in self.written:
            self.list_keys(tracer)  # before it is there again, at the end
            self.reordered = True
        self.new[code] = (old[0] if old else key, value)
        if self.real is not None:
            self.written[code] = True

    def _settle(self, tracer: Tracer) -> None:
        """Fix the keys that were left open: what is in the dict matters now."""
        stores, self.unsettled = self.unsettled, []
        for key, value in stores:
            self.set_item(tracer, Constant(key.value), value)

    def delete_item(self, tracer: Tracer, key: Value) -> None:
        if self.lookup(tracer, key) is None:
            raise tracer.raises(KeyError, key)
        self.mutate(tracer)
        code = tracer.objects.hash_key(key)
        if code in self.blind:
            self.blind.discard(code)
            tracer.guards.dict_key(self, key.concrete(), present=dict.__contains__(self.real, key.concrete()))
        del self.new[code]
        if self.real is not None:
            self.written[code] = True

    def reconstruct(self, emitter: Emitter) -> None:
        if self.owner is not None:
            emitter.load(self.owner)
            emitter.load_attribute("__dict__")
            return
        pairs = dict(self.pairs(emitter.tracer))
        if self.cls is dict:
            emitter.push(pairs)
        else:
            emitter.call_with(self.cls, *([self.factory] if self.cls is defaultdict else []), pairs)
        emitter.set_attributes(self, self.own)


class ClassNames(DictValue):
    """The dictionary of a class from outside; `of`: the class. What the code writes into the class is not in it."""

    of: type | None = None

    def concrete(self) -> Any:
        """Nobody who is given the dictionary guards what is in it."""
        raise NotConcrete(self)

    def _settle(self, tracer: Tracer) -> None:
        if id(self.of) in tracer.writes:
            raise UnsupportedCall(f"reading the dictionary of class {self.of.__qualname__}, which has changed")  # type: ignore[union-attr]


class DictView(Value):
    """d.keys(), d.values(), d.items(): live views."""

    dictionary: DictValue
    what: str

    def python_type(self) -> type:
        return type(getattr({}, self.what)())

    def concrete(self) -> Any:
        return getattr(self.dictionary.concrete(), self.what)()

    length, truth = passed_on("dictionary", "length", "truth")

    def iterate(self, tracer: Tracer, maker: Callable[[Any], Any] = iter) -> Value:
        self.dictionary.list_keys(tracer)
        pairs = self.dictionary.new
        give: Callable[[Any], Value] = {
            "keys": lambda code: pairs[code][0],
            "values": lambda pair: pair[1],
            "items": lambda item: TupleValue(list(item[1])),
        }[self.what]
        host = maker(getattr(pairs, self.what)())
        return ContainerIterator(self, host, give, lambda: list(self.dictionary.new), maker)

    @property
    def mutated(self) -> bool:
        """Whether it is of an outside dict that has changed."""
        return self.dictionary.mutated

    def contains(self, tracer: Tracer, item: Value) -> bool:
        if self.what == "keys":
            return self.dictionary.contains(tracer, item)
        if self.what != "items":
            return super().contains(tracer, item)
        if not isinstance(item, TupleValue) or len(item.items) != 2:
            return False
        key, value = item.values(tracer)
        found = self.dictionary.lookup(tracer, key)
        return found is not None and tracer.evaluate.equal(tracer, found, value)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_with(operator.methodcaller(self.what), self.dictionary)


class MappingProxyValue(Value):
    """A read-only view of a dict."""

    dictionary: DictValue
    cls = MappingProxyType

    def plain(self) -> Value:
        return self.dictionary

    def concrete(self) -> Any:
        return MappingProxyType(self.dictionary.concrete())

    get_item, length, truth, iterate, contains, call_method = passed_on(
        "dictionary", "get_item", "length", "truth", "iterate", "contains", "call_method"
    )

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_with(MappingProxyType, self.dictionary)


_ENVIRONMENT: Any = os.environ._data  # type: ignore[attr-defined]
"""The dictionary under os.environ: encoded names and values."""
_GET_VARIABLE = _ENVIRONMENT.get


def guard_variable(tracer: Tracer, name: Any) -> None:
    """The variable of this (encoded) name has the value that it has now, or none as now."""
    place = tracer.places.reading(_GET_VARIABLE, tracer.places.guarded(name))
    tracer.guards.identity(place, _ENVIRONMENT.get(name))


def guard_all(tracer: Tracer) -> None:
    """All variables are as they are now."""
    for name in _ENVIRONMENT:
        guard_variable(tracer, name)
    tracer.guards.length(tracer.places.guarded(_ENVIRONMENT), len(_ENVIRONMENT))
