"""Real objects of C types that the evaluator only passes along: locks, generators, patterns; context variables."""

from __future__ import annotations

import datetime
import enum
import inspect
import operator
import re
import types
import weakref
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, ClassVar, NamedTuple

import torch

from bytecap.context_types import Emitter, Tracer
from bytecap.errors import CannotCapture, DisabledCall, UnsupportedCall, UnsupportedMutation, UnsupportedValue
from bytecap.hook import Dispatcher
from bytecap.objects.base import NONE, Constant, RealValue, Value, fold, run, state
from bytecap.objects.class_lookup import MISSING, static_lookup
from bytecap.objects.live import LiveObject, call_native
from stagewire.capture import Reading
from stagewire.graph import Ellipsis as AnyObject

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
        if names is not None and not is_known:
            tracer.guards.lacks(self.source, name)
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
        tracer.guards.same(self.source, place, same)  # type: ignore[arg-type]
        return same

    real = property(UnknownValue.refuse)
    python_type = stand_in = is_none = UnknownValue.refuse


def refuse_unguarded(*values: Value) -> None:
    """End the graph where one of these operands may be anything in the next call."""
    for value in values:
        if isinstance(value, UnguardedValue):
            value.refuse()


# -- Context variables (`contextvars.ContextVar`) from outside: what they hold; what is set is set again at each run.
#
# A token that is given back in its turn leaves nothing to do. Tokens that are left, where a graph ends between `set`
# and `reset`, are real ones in the code behind it.
#

_UNSET: Any = object()


class ContextVariable(OpaqueValue):
    """A context variable.

    content: what the captured code set; None: what it held before. is_read: whether an object was read that it held
    before. changes: what is left to do again, in its order.
    """

    content: Value | None = state(default=None)
    is_read: bool = state(default=False)
    changes: list[ContextToken | Reset] = state(default_factory=list)
    methods: ClassVar = {
        "get": lambda tracer, self, default=None: self._get(tracer, default),
        "set": lambda tracer, self, value: self._set(tracer, value),
        "reset": lambda tracer, self, token: self._reset(tracer, token),
    }

    def _get(self, tracer: Tracer, default: Value | None) -> Value:
        if self.content is not None:
            return self.content
        if self.changes:
            raise UnsupportedCall(f"the value of {self.real.name!r} behind the reset of a token from outside")
        base = tracer.places.handle(self.real) if self.source is None else self.source
        get = tracer.names.of(ContextVar.get)
        if self.real.get(_UNSET) is _UNSET:
            tracer.guards.identity(Reading(get, base, (AnyObject(),)), ...)
            if default is not None:
                return default
        held = tracer.objects.wrap(run(tracer, self.real.get, ()), Reading(get, base))
        self.is_read = self.is_read or not isinstance(held, Constant)
        return held

    def _set(self, tracer: Tracer, value: Value) -> Value:
        token = ContextToken(self, value, self.content)
        self._note(tracer, token)
        self.content = value
        return token

    def _note(self, tracer: Tracer, change: ContextToken | Reset) -> None:
        self.changes.append(change)
        tracer.effects.append(change)

    def _reset(self, tracer: Tracer, token: Value) -> Value:
        if isinstance(token, ContextToken) and token.variable is self and not token.is_used:
            token.is_used = True
            self.content = token.before
            if self.changes and self.changes[-1] is token:  # as if it had not been
                tracer.effects.remove(self.changes.pop())
                return NONE
        elif isinstance(token, OpaqueValue) and isinstance(token.real, Token) and token.real.var is self.real:
            self.content = None
        else:
            raise UnsupportedCall(f"ContextVar.reset() with a {token.describe()} that is used, or of another variable")
        self._note(tracer, Reset(self, token))
        return NONE

    def check_unread(self) -> None:
        """Raise UnsupportedMutation where an object was read from it before it was set: it may be read again."""
        if self.is_read:
            raise UnsupportedMutation(f"setting {self.real.name!r}, whose value was read before")


class ContextToken(Value):
    """What `set` returned in the captured code; also the side effect of setting.

    before: what the variable held (None: what it held before the capture). is_used: whether it was given back.
    """

    variable: ContextVariable
    value: Value
    before: Value | None
    is_used: bool = state(default=False)
    cls = Token
    parts: ClassVar = {"var": lambda tracer, self: self.variable}

    def reconstruct(self, emitter: Emitter) -> None:
        is_undone = self not in self.variable.changes
        if not is_undone:
            self.variable.check_unread()
        emitter.call_with(_set_and_reset if is_undone else ContextVar.set, self.variable, self.value)


class Reset(NamedTuple):
    """The side effect: a token that is given back out of its turn, or one from outside."""

    variable: ContextVariable
    token: Value


def _set_and_reset(variable: ContextVar[Any], value: Any) -> Token[Any]:
    """A token that has been given back."""
    token = variable.set(value)
    variable.reset(token)
    return token
