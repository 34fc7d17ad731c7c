"""Methods of lists, tuples, dicts, dict views and sets, as tables from name to meaning."""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from types import FunctionType, SimpleNamespace
from typing import Any

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.objects.base import NONE, Constant, Value, collect, run
from bytecap.objects.class_lookup import has_method, no_attribute
from bytecap.objects.containers.host_containers import DequeValue, SetValue, keys_of
from bytecap.objects.containers.mappings import DictValue, DictView
from bytecap.objects.containers.sequences import ListValue, TupleValue, one_by_one
from bytecap.objects.instances.exceptions import ExceptionValue
from bytecap.objects.instances.objects import ObjectValue, copies_as_itself
from bytecap.objects.live import call_native, native_on_list
from bytecap.semantics.attributes import default_set_attribute, find_attribute
from bytecap.semantics.constant_folding import fold_call
from bytecap.semantics.operations import binary, compare

Method = Callable[..., Value]

# -- lists and tuples


def _append(tracer: Tracer, self: ListValue, item: Value) -> Value:
    self.mutate(tracer)
    self.add([item])
    return NONE


def _extend(tracer: Tracer, self: ListValue, items: Value) -> Value:
    for item in one_by_one(tracer, items):
        _append(tracer, self, item)
    return NONE


def _extend_left(tracer: Tracer, self: DequeValue, items: Value) -> Value:
    for item in one_by_one(tracer, items):
        self.items.appendleft(item)  # type: ignore[attr-defined]
        self.mutate(tracer)
    return NONE


def _host_method(name: str, *indices: int) -> Method:
    """A method that moves items and looks at none: the one of the host list or deque inside the value."""

    def move(tracer: Tracer, self: ListValue, *args: Value, **kwargs: Value) -> Value:
        given = [value.as_int(tracer) if at in indices else value for at, value in enumerate(args)]
        found = tracer.objects.fresh(call_native(tracer, getattr(self.items, name), *given, **kwargs))
        self.mutate(tracer)
        return found

    return move


def _copy(tracer: Tracer, self: ListValue) -> Value:
    return self.like(self.values(tracer), cls=self.cls)


def _numel(tracer: Tracer, self: TupleValue) -> Value:
    return functools.reduce(functools.partial(binary, tracer, "*"), self.values(tracer), Constant(1))


_LIST: dict[str, Method] = {
    "append": _append, "extend": _extend, "copy": _copy, "insert": _host_method("insert", 0),
    "pop": _host_method("pop", 0), "reverse": _host_method("reverse"), "clear": _host_method("clear"),
    "index": native_on_list(list.index, 1, 2), "count": native_on_list(list.count),
    "remove": native_on_list(list.remove), "sort": native_on_list(list.sort),
}  # fmt: skip
_DEQUE: dict[str, Method] = _LIST | {
    "__copy__": _copy, "rotate": _host_method("rotate", 0), "extendleft": _extend_left,
    "appendleft": _host_method("appendleft"), "popleft": _host_method("popleft"),
    "index": native_on_list(deque.index, 1, 2), "count": native_on_list(deque.count),
    "remove": native_on_list(deque.remove),
}  # fmt: skip
_TUPLE: dict[str, Method] = {
    "index": native_on_list(tuple.index, 1, 2), "count": native_on_list(tuple.count),
    "numel": _numel,
}  # fmt: skip

# -- dicts


def _get(tracer: Tracer, self: DictValue, key: Value, default: Value = NONE) -> Value:
    found = self.lookup(tracer, key)
    return default if found is None else found


def _dict_pop(tracer: Tracer, self: DictValue, key: Value, default: Value | None = None) -> Value:
    found = self.lookup(tracer, key)
    if found is None:
        if default is None:
            raise tracer.raises(KeyError, key)
        return default
    self.delete_item(tracer, key)
    return found


def _popitem(tracer: Tracer, self: DictValue, last: Value | None = None) -> Value:
    pairs = self.pairs(tracer)
    if not pairs:
        raise tracer.raises(KeyError, "popitem(): dictionary is empty")
    key, value = pairs[-1 if last is None or last.truth(tracer) else 0]
    self.delete_item(tracer, key)
    return TupleValue([key, value])


def _setdefault(tracer: Tracer, self: DictValue, key: Value, default: Value = NONE) -> Value:
    found = self.lookup(tracer, key)
    if found is not None:
        return found
    self.set_item(tracer, key, default)
    return default


def _update(tracer: Tracer, self: DictValue, other: Value | None = None, /, **more: Value) -> Value:
    for key, value in [] if other is None else pairs_of(tracer, other):
        self.set_item(tracer, key, value)
    for name, value in more.items():
        self.set_item(tracer, Constant(name), value)
    return NONE


def pairs_of(tracer: Tracer, other: Value) -> Iterable[tuple[Value, Value]]:
    """(key, value) pairs of a mapping or an iterable of pairs, which are read one by one."""
    if isinstance(other, DictValue):
        return other.pairs(tracer)
    if isinstance(other, ObjectValue):
        has_user_keys = other._special(tracer, "keys") is not None
        if isinstance(other.base, DictValue) and not has_user_keys:
            return other.base.pairs(tracer)
    if has_method(other, "keys"):
        keys = collect(tracer, other.get_attribute(tracer, "keys").call(tracer, [], {}))
        return ((key, other.get_item(tracer, key)) for key in keys)
    return (_pair(tracer, position, pair) for position, pair in enumerate(other.each(tracer)))


def _pair(tracer: Tracer, position: int, pair: Value) -> tuple[Value, Value]:
    if not pair.is_iterable():
        complaint = f"cannot convert dictionary update sequence element #{position} to a sequence"
        raise tracer.raises(TypeError, complaint)
    items = collect(tracer, pair)
    if len(items) != 2:
        complaint = f"dictionary update sequence element #{position} has length {len(items)}; 2 is required"
        raise tracer.raises(ValueError, complaint)
    return items[0], items[1]


def _dict_clear(tracer: Tracer, self: DictValue) -> Value:
    for key, _ in self.pairs(tracer):
        self.delete_item(tracer, key)
    return NONE


def _dict_copy(tracer: Tracer, self: DictValue) -> Value:
    made = DictValue(cls=self.cls, factory=self.factory)
    _update(tracer, made, self)
    return made


def _move_to_end(tracer: Tracer, self: DictValue, key: Value, last: Value | None = None) -> Value:
    code = tracer.objects.hash_key(key)
    self.list_keys(tracer)
    if code not in self.new:
        raise tracer.raises(KeyError, key)
    self.mutate(tracer)
    self.reordered = True
    self.new.move_to_end(code, last is None or last.truth(tracer))  # type: ignore[attr-defined]
    return NONE


def _fromkeys(tracer: Tracer, self: DictValue, keys: Value, value: Value = NONE) -> Value:
    made = DictValue(cls=self.cls)
    for key in keys.each(tracer):
        made.set_item(tracer, key, value)
    return made


def _view(what: str) -> Method:
    return lambda tracer, self: DictView(self, what)


_DICT: dict[str, Method] = {
    "get": _get, "pop": _dict_pop, "popitem": _popitem, "setdefault": _setdefault, "update": _update,
    "clear": _dict_clear, "copy": _dict_copy, "move_to_end": _move_to_end, "fromkeys": _fromkeys,
    "keys": _view("keys"), "values": _view("values"), "items": _view("items"),
}  # fmt: skip


def _reversed(tracer: Tracer, self: Any) -> Value:
    return (DictView(self, "keys") if isinstance(self, DictValue) else self).iterate(tracer, reversed)


# -- sets


def _discard(tracer: Tracer, self: SetValue, item: Value) -> Value:
    key = self.lookup_key(item)
    self.mutate(tracer)
    self.keys.discard(key)
    return NONE


def _remove(tracer: Tracer, self: SetValue, item: Value) -> Value:
    if not self.contains(tracer, item):
        raise tracer.raises(KeyError, item)
    return _discard(tracer, self, item)


def _pop_member(tracer: Tracer, self: SetValue) -> Value:
    if self.keys:
        self.mutate(tracer)
    return tracer.objects.of_key(call_native(tracer, self.keys.pop))


def _set_method(name: str, *, changes: bool = False) -> Method:
    """A method of the host set, on the keys of what it is given."""

    def call(tracer: Tracer, self: SetValue, *others: Value) -> Value:
        sides = [keys_of(tracer, other) for other in others]
        if changes:
            self.mutate(tracer)
        keys = self.keys
        found = call_native(tracer, getattr(keys, name), *sides)
        if not isinstance(found, (set, frozenset)):
            return Constant(found)
        return self if found is keys else SetValue(tracer.objects, found)

    return call


_SET: dict[str, Method] = {
    name: _set_method(name)
    for name in (
        "copy", "union", "intersection", "difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint",
    )
} | {
    name: _set_method(name, changes=True)
    for name in ("clear", "update", "intersection_update", "difference_update", "symmetric_difference_update")
} | {
    "add": lambda tracer, self, item: self.add(tracer, item) or NONE, "discard": _discard, "remove": _remove,
    "pop": _pop_member,
}  # fmt: skip

# -- dunder methods that every value answers by its protocol


def _init_container(tracer: Tracer, self: Value, *args: Value, **kwargs: Value) -> Value:
    if isinstance(self, DictValue):
        if self.cls is defaultdict and args:
            factory, *args = args  # type: ignore[assignment]
            self.factory = None if factory.is_none() else factory
        return _update(tracer, self, *args, **kwargs)
    if isinstance(self, ListValue):
        self.methods["clear"](tracer, self)
        return self.methods["extend"](tracer, self, *args[:1]) if args else NONE
    if isinstance(self, SetValue) and self.cls is set:
        _SET["clear"](tracer, self)
        return _SET["update"](tracer, self, *args)
    return NONE


PROTOCOL: dict[str, Method] = {
    "__getitem__": lambda tracer, self, key: self.get_item(tracer, key),
    "__setitem__": lambda tracer, self, key, item: self.set_item(tracer, key, item) or NONE,
    "__delitem__": lambda tracer, self, key: self.delete_item(tracer, key) or NONE,
    "__contains__": lambda tracer, self, item: Constant(self.contains(tracer, item)),
    "__reduce_ex__": lambda tracer, self, protocol: tracer.evaluate.reduce_ex(tracer, self, protocol),
    "__len__": lambda tracer, self: Constant(self.length(tracer)),
    "__iter__": lambda tracer, self: self.iterate(tracer),
    "__bool__": lambda tracer, self: Constant(self.truth(tracer)),
    "__reversed__": _reversed,
    "__init__": _init_container,
    "__add__": lambda tracer, self, other: binary(tracer, "+", self, other),
    "__mul__": lambda tracer, self, other: binary(tracer, "*", self, other),
    "__or__": lambda tracer, self, other: binary(tracer, "|", self, other),
    "__eq__": lambda tracer, self, other: compare(tracer, "==", self, other),
    "__ne__": lambda tracer, self, other: compare(tracer, "!=", self, other),
}


ListValue.methods = PROTOCOL | _LIST
DequeValue.methods = PROTOCOL | _DEQUE
TupleValue.methods = PROTOCOL | _TUPLE
DictValue.methods = PROTOCOL | _DICT
SetValue.methods = PROTOCOL | _SET
DictView.methods = PROTOCOL | {
    "isdisjoint": lambda tracer, self, other: Constant(
        call_native(tracer, keys_of(tracer, self).isdisjoint, keys_of(tracer, other))
    )
}


# -- instances of Python classes: what `object` and builtin bases implement in C


def _object_getattribute(tracer: Tracer, self: ObjectValue, name: Value) -> Value:
    found = find_attribute(tracer, self, name.concrete())
    if found is None:
        raise no_attribute(tracer, self, name.concrete())
    return found


def _leaves_init_to_object(cls: type) -> bool:
    """Whether its own `__init__` is written in Python, and the only one in C is object's."""
    found = [base.__dict__["__init__"] for base in cls.__mro__[:-1] if "__init__" in base.__dict__]
    return bool(found) and all(isinstance(init, FunctionType) for init in found)


def _object_init(tracer: Tracer, self: ObjectValue, *args: Value, **kwargs: Value) -> Value:
    if isinstance(self, ExceptionValue):
        self.initialise(tracer, list(args), kwargs)
    elif issubclass(self.cls, SimpleNamespace):
        self.attributes.call_method(tracer, "update", list(args), kwargs)
    elif self.base is not None and not isinstance(self.base, (Constant, TupleValue)):
        _init_container(tracer, self.base, *args, **kwargs)
    elif self.base is None and (args or kwargs) and _leaves_init_to_object(self.cls):
        raise tracer.raises(TypeError, "object.__init__() takes exactly one argument (the instance to initialize)")
    return NONE


_OBJECT: dict[str, Method] = {
    "__setattr__": lambda tracer, self, name, item: default_set_attribute(tracer, self, name.concrete(), item) or NONE,
    "__getattribute__": _object_getattribute,
    "__delattr__": lambda tracer, self, name: default_set_attribute(tracer, self, name.concrete(), None) or NONE,
    "__init__": _object_init,
    "__init_subclass__": lambda tracer, self: NONE,
    "__eq__": lambda tracer, self, other: Constant(self is other),
    "__ne__": lambda tracer, self, other: Constant(self is not other),
    "with_traceback": lambda tracer, self, traceback: self,
    "add_note": lambda tracer, self, note: self.add_note(tracer, note),
}


def call_object_method(
    tracer: Tracer, self: ObjectValue, name: str, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Call a method that a Python object inherits from a C type."""
    if name in ("__setattr__", "__getattribute__", "__delattr__", "__init__"):
        return _OBJECT[name](tracer, self, *args, **kwargs)
    if name == "__reduce_ex__":
        return tracer.evaluate.reduce_ex(tracer, self, *args)
    if name == "__getitem__" and self.base is not None:
        return self.get_base_item(tracer, self.base, *args)
    if name == "copy" and copies_as_itself(self):
        raise UnsupportedCall(f"a copy of a {self.describe()}")
    tracer.guards.lookup(self.cls, name)
    base = self.base  # what it implements itself, past `object`
    if base is not None and getattr(base.python_type(), name, None) is not getattr(object, name, None):
        return base.call_method(tracer, name, args, kwargs)
    method = _OBJECT.get(name)
    if method is not None:
        return method(tracer, self, *args, **kwargs)
    if name in ("__repr__", "__str__", "__format__", "__hash__", "__sizeof__", "__dir__"):
        return fold_call(tracer, run(tracer, getattr, (self.concrete(), name)), args, kwargs)
    raise UnsupportedCall(f"method {name!r} of a {self.describe()}")
