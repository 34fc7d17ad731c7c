"""Immutable Python values that the evaluator computes with at once."""

from __future__ import annotations

import enum
import operator
from typing import Any

import torch

from bytecap.context_types import Emitter, Tracer
from bytecap.guards.guard_set import is_watched
from bytecap.objects.base import Value, collect, contains_by_iteration
from bytecap.objects.class_lookup import static_lookup, stranger
from bytecap.objects.signals import NotConcrete, fold, run
from stagewire.capture import Attribute, Source

LITERALS = (int, float, bool, str, bytes, type(None), complex)
TORCH_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)

_OF_MEMBERS = {"value": "_value_", "name": "_name_", "_value_": "_value_", "_name_": "_name_"}
"""What an enum member says of itself, and the attribute that it lies in."""


class Constant(Value):
    """A value whose every operation is known: numbers, strings, None, dtypes, devices, enum members, ranges."""

    value: Any

    @property
    def is_open(self) -> bool:
        """Whether the value may be another one in the next call (see `open_constants`)."""
        return False

    def python_type(self) -> type:
        return type(self.value)

    def concrete(self) -> Any:
        return self.value

    def is_none(self) -> bool:
        return self.python_type() is type(None)

    def host(self) -> Any:
        """What arithmetic and torch calls compute with."""
        return self.value

    def stand_in(self) -> Any:
        return self.value if isinstance(self.value, LITERALS) else None

    def describe(self) -> str:
        return f"{type(self.value).__name__} {self.value!r}"

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name == "__class__":
            return tracer.objects.wrap(type(self.value), None)
        if isinstance(self.value, enum.Enum) and name in _OF_MEMBERS:
            return self._member_part(tracer, name)
        return tracer.evaluate.generic_get_attribute(tracer, self, name)

    def _member_part(self, tracer: Tracer, name: str) -> Value:
        """`value` or `name` of an enum member, which lies in an attribute."""
        private = _OF_MEMBERS[name]
        is_standard = name == private or static_lookup(type(self.value).__mro__, name)[1] is enum.Enum
        source = self.source or _place_of_member(tracer, self.value)
        if source is None or not is_standard or private not in vars(self.value):
            return fold(tracer, getattr, (self.value, name))
        return tracer.objects.wrap(vars(self.value)[private], Attribute(source, private))

    def length(self, tracer: Tracer) -> int:
        return run(tracer, len, (self.value,))

    def truth(self, tracer: Tracer) -> bool:
        return bool(self.value)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "join" and len(args) == 1 and isinstance(self.value, (str, bytes)):
            return self._join(tracer, args[0])
        if name in ("format", "format_map") and isinstance(self.value, str):
            return self._format(tracer, name, args, kwargs)
        return super().call_method(tracer, name, args, kwargs)

    def _join(self, tracer: Tracer, parts: Value) -> Value:
        if not parts.is_iterable():
            return fold(tracer, self.value.join, (None,))
        found = [part.plain() for part in collect(tracer, parts)]
        # What is no text is refused with the name of its class.
        shown = [part.value if isinstance(part, Constant) else stranger(part) for part in found]
        return fold(tracer, self.value.join, (shown,))

    def _format(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        shown = [tracer.evaluate.printable(tracer, arg) for arg in args]
        named = {key: tracer.evaluate.printable(tracer, value) for key, value in kwargs.items()}
        return Constant(run(tracer, getattr(self.value, name), tuple(shown), named))

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        real = key.concrete() if isinstance(key, Constant) or key.python_type() is slice else key
        if real is key and not hasattr(self.value, "__getitem__"):
            return super().get_item(tracer, key)
        return fold(tracer, operator.getitem, (self.value, key.concrete()))

    def iterate(self, tracer: Tracer) -> Value:
        return fold(tracer, iter, (self.value,))

    def contains(self, tracer: Tracer, item: Value) -> bool:
        try:
            real = item.concrete()
        except NotConcrete:
            return contains_by_iteration(tracer, self, item)
        return run(tracer, lambda box, x: x in box, (self.value, real))

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.constant(self.value)

    def __repr__(self) -> str:
        return f"<Constant {self.value!r}>"


NONE = Constant(None)


def _place_of_member(tracer: Tracer, member: enum.Enum) -> Source | None:
    """Where a member of a user's enum class can be read; None for libraries' and for combined flags."""
    cls = type(member)
    if not is_watched(cls.__module__):
        return None
    name = next((name for name, found in cls._member_map_.items() if found is member), None)
    return None if name is None else Attribute(tracer.places.of(cls), name)
