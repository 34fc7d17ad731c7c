"""Real objects of C types that the evaluator only passes along: locks, generators, patterns."""

from __future__ import annotations

import datetime
import enum
import inspect
import operator
import re
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from bytecap.context_types import Tracer
from bytecap.errors import CannotCapture, DisabledCall, UnsupportedCall, UnsupportedValue
from bytecap.hook import Dispatcher
from bytecap.objects.base import Constant, RealValue, Value, fold, run
from bytecap.objects.class_lookup import MISSING, static_lookup
from bytecap.objects.live import LiveObject, call_native

PURE_CLASSES = (
    re.Pattern, re.Match, types.MappingProxyType, inspect.Signature, inspect.Parameter, datetime.date,
    datetime.timedelta,
)  # fmt: skip
"""Classes whose methods give what is fixed for the life of a capture."""


def _call_operator(tracer: Tracer, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """itemgetter, attrgetter, methodcaller."""
    return tracer.objects.fresh(call_native(tracer, real, *[LiveObject(tracer, arg) for arg in args]))


def _call_alias(tracer: Tracer, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`list[int](...)`: the class is called; what takes attributes remembers by which alias."""
    made = tracer.objects.wrap(real.__origin__, None).call(tracer, args, kwargs)
    if made.python_type().__dictoffset__:
        made.set_attribute(tracer, "__orig_class__", tracer.objects.fresh(real))
    return made


def _call_scripted(tracer: Tracer, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """TorchScript computes what the Python function computes that it was made of."""
    return tracer.objects.wrap(real._torchdynamo_inline, None).call(tracer, args, kwargs)


def _call_disabled(tracer: Tracer, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise DisabledCall(f"{getattr(real, '__qualname__', 'a callable')} runs plain")


_CALLS: tuple[tuple[type, Callable[..., Value]], ...] = (
    (Dispatcher, _call_disabled),
    (torch.jit.ScriptFunction, _call_scripted),
    (types.GenericAlias, _call_alias),
    *((cls, _call_operator) for cls in (operator.itemgetter, operator.attrgetter, operator.methodcaller)),
)

# Constants that are one object wherever they come from.
SINGLE = (type(None), bool, type(Ellipsis), type(NotImplemented), enum.Enum, torch.dtype, torch.layout)


class OpaqueValue(Value):
    """An object without a model; it has identity, and real attributes of its type.

    pin: guards the identity of an outside object, called as soon as the object itself is looked at. One that is only
    passed along may be another one of its class in the next call.
    """

    _real: Any
    _pin: Callable[[], None] | None = None

    @property
    def real(self) -> Any:
        """The object."""
        if self._pin is not None:
            self._pin()
            self._pin = None
        return self._real

    def shows_changes(self) -> bool:
        """Whether it is a view of a dict from outside, which may change behind it."""
        return isinstance(self._real, types.MappingProxyType) and self.source is not None

    def python_type(self) -> type:
        return type(self._real)

    def concrete(self) -> Any:
        return self.real

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        names = getattr(self.real, "__dict__", None)
        found = names.get(name, MISSING) if isinstance(names, (dict, types.MappingProxyType)) else MISSING
        if found is not MISSING:
            return tracer.objects.wrap(found, tracer.places.attribute(self.source, name))
        is_known = static_lookup(type(self.real).__mro__, name)[1] is not None
        if not is_known and hasattr(self.real, name):
            raise UnsupportedCall(f"attribute {name!r} of a {self.describe()}, which its class computes")
        return super().get_attribute(tracer, name)

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if type(self.real) is weakref.ref:
            return tracer.objects.wrap(self.real(), tracer.places.reading(weakref.ref.__call__, self.source))
        for cls, meaning in _CALLS:
            if isinstance(self.real, cls):
                return meaning(tracer, self.real, args, kwargs)
        return super().call(tracer, args, kwargs)

    def length(self, tracer: Tracer) -> int:
        self._need_fixed()
        return run(tracer, len, (self.real,))

    def truth(self, tracer: Tracer) -> bool:
        if any(static_lookup(type(self.real).__mro__, name)[1] for name in ("__bool__", "__len__")):
            self._need_fixed()
        return run(tracer, bool, (self.real,))

    def iterate(self, tracer: Tracer) -> Value:
        self._need_fixed()
        return fold(tracer, list, (self.real,)).iterate(tracer)

    def _need_fixed(self) -> None:
        """The content of any other object may change, and no guard would see it."""
        if not isinstance(self.real, PURE_CLASSES) or self.shows_changes():
            raise UnsupportedCall(f"the content of a {self.describe()}")


class UnknownValue(RealValue):
    """An outside object of a kind without a model: it can be passed along, and its class is known; other uses raise.

    why: the sentence of the refusal. kind: its class.
    """

    why: str
    kind: type[CannotCapture] = UnsupportedValue

    def refuse(self, *args: Any, **kwargs: Any) -> Any:
        """End the graph: the answer would hold for this call alone."""
        raise self.kind(self.why)

    concrete = refuse
    get_attribute = set_attribute = delete_attribute = refuse
    call = call_method = refuse
    get_item = set_item = delete_item = refuse
    length = truth = iterate = contains = refuse


class UnguardedValue(UnknownValue):
    """An outside object that may be any other one in the next call: it can only be passed along.

    Every question about it ends the graph, `python_type()` and `real` too, so that nothing is answered from the object
    of this call by oversight. The one that is answered, under a guard, is whether it is a certain constant.
    """

    _object: Any
    words = "object of a class that differs from call to call"

    def is_constant(self, tracer: Tracer, other: Value) -> bool:
        """Whether it is the constant `other` (None, True, a dtype: of such there is one object), guarded."""
        if not isinstance(other, Constant) or not issubclass(other.python_type(), SINGLE):
            self.refuse()
        same = self._object is other.concrete()
        place = tracer.places.guarded(other.concrete())
        tracer.guards.same(self.source, place, same, tracer.line())  # type: ignore[arg-type]
        return same

    real = property(UnknownValue.refuse)
    python_type = stand_in = is_none = UnknownValue.refuse


def refuse_unguarded(*values: Value) -> None:
    """End the graph where one of these operands may be anything in the next call."""
    for value in values:
        if isinstance(value, UnguardedValue):
            value.refuse()
