"""Methods of sets, frozensets and dict views."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bytecap.objects.base import Value, collect
from bytecap.objects.constant import Constant
from bytecap.objects.containers.mappings import DictValue, DictView
from bytecap.objects.containers.sequences import Sequence, one_by_one
from bytecap.objects.containers.sets import SetValue, combine, keys_of

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer

Method = Callable[..., Value]
NONE = Constant(None)


def _add(tracer: Tracer, self: SetValue, item: Value) -> Value:
    self.add(tracer, item)
    return NONE


def _discard(tracer: Tracer, self: SetValue, item: Value) -> Value:
    self.discard(tracer, tracer.objects.hash_key(item))
    return NONE


def _remove(tracer: Tracer, self: SetValue, item: Value) -> Value:
    if not self.contains(tracer, item):
        raise tracer.raises(KeyError, item)
    return _discard(tracer, self, item)


def _pop(tracer: Tracer, self: SetValue) -> Value:
    if not self.members:
        raise tracer.raises(KeyError, "pop from an empty set")
    self.mutate(tracer)
    return self.members.pop(self.order.pop())


def _clear(tracer: Tracer, self: SetValue) -> Value:
    self.mutate(tracer)
    self.members.clear()
    self.order.clear()
    return NONE


def _copy(tracer: Tracer, self: SetValue) -> Value:
    if self.cls is frozenset:
        return self
    return SetValue(dict(self.members), order=self.order.copy(), cls=self.cls)


def _operation(name: str) -> Method:
    return lambda tracer, self, *others: combine(name, self, [keys_of(tracer, other) for other in others])


def _update(name: str) -> Method:
    """The form of an operation that changes the set."""

    def apply(tracer: Tracer, self: SetValue, *others: Value) -> Value:
        sides = [keys_of(tracer, other) for other in others]
        made = combine(name, self, sides)
        self.mutate(tracer)
        if name == "union":
            self.order.update(*[keys for keys, _ in sides])
        else:
            self.order = made.order
        self.members = made.members
        return NONE

    return apply


def _union_update(tracer: Tracer, self: SetValue, *others: Value) -> Value:
    for other in others:
        if isinstance(other, (SetValue, DictValue, Sequence)):
            _JOIN(tracer, self, other)
            continue
        for item in one_by_one(tracer, other):
            self.add(tracer, item)
    return NONE


_JOIN = _update("union")


def _test(test: Callable[[Any, Any], bool]) -> Method:
    def apply(tracer: Tracer, self: Value, other: Value) -> Value:
        own = keys_of(tracer, self)[1].keys()
        return Constant(test(own, keys_of(tracer, other)[1].keys()))

    return apply


_IS_DISJOINT = _test(lambda a, b: a.isdisjoint(b))
SET_METHODS: dict[str, Method] = {
    "add": _add, "discard": _discard, "remove": _remove, "pop": _pop, "clear": _clear, "copy": _copy,
    "update": _union_update, "union_update": _union_update,
    "issubset": _test(lambda a, b: a <= b), "issuperset": _test(lambda a, b: a >= b), "isdisjoint": _IS_DISJOINT,
} | {name: _operation(name) for name in ("union", "intersection", "difference", "symmetric_difference")} | {
    f"{name}_update": _update(name) for name in ("intersection", "difference", "symmetric_difference")
}  # fmt: skip

VIEW_METHODS: dict[str, Method] = {"isdisjoint": _IS_DISJOINT}


def view_intersection(tracer: Tracer, left: Value, right: Value) -> SetValue:
    """`&` of a view of keys or items with anything (CPython's _PyDictView_Intersect, which fixes the order)."""
    view, other = (left, right) if isinstance(left, DictView) else (right, left)
    size = view.length(tracer)
    if isinstance(other, SetValue) and size <= other.length(tracer):
        return combine("intersection", other, [keys_of(tracer, view)])
    if isinstance(other, DictView) and other.length(tracer) > size:
        view, other = other, view
    return tracer.objects.new_set([item for item in collect(tracer, other) if view.contains(tracer, item)])
