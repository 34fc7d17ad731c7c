"""Context variables (`contextvars.ContextVar`) from outside: what they hold, and what is set is set again at each run.

A token that is given back in its turn leaves nothing to do. Tokens that are left, where a graph ends between `set`
and `reset`, are real ones in the code behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bytecap.context_types import Emitter, Tracer
from bytecap.errors import UnsupportedCall, UnsupportedMutation
from bytecap.objects.base import NONE, Constant, Value, run, state
from bytecap.objects.opaque import OpaqueValue
from stagewire.capture import Reading
from stagewire.graph import Ellipsis as AnyObject

_UNSET: Any = object()


class ContextVariable(OpaqueValue):
    """A context variable.

    content: what the captured code set; None: what it held before. is_read: whether an object was read that it held
    before. writes: what is left to do again.
    """

    content: Value | None = state(default=None)
    is_read: bool = state(default=False)
    writes: ContextWrites = state()

    def __post_init__(self) -> None:
        self.writes = ContextWrites(self)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        method, counts = _METHODS.get(name, (None, ()))
        if method is None:
            return super().call_method(tracer, name, args, kwargs)
        if kwargs or len(args) not in counts:
            run(tracer, getattr(ContextVar, name), (self.real, *args), kwargs)  # raises TypeError
        return method(self, tracer, *args)

    def _get(self, tracer: Tracer, default: Value | None = None) -> Value:
        if self.content is not None:
            return self.content
        if self.writes.changes:
            raise UnsupportedCall(f"the value of {self.real.name!r} behind the reset of a token from outside")
        base = tracer.places.handle(self.real) if self.source is None else self.source
        get = tracer.names.of(ContextVar.get)
        if self.real.get(_UNSET) is _UNSET:
            tracer.guards.identity(Reading(get, base, (AnyObject(),)), ..., tracer.line())
            if default is not None:
                return default
        held = tracer.objects.wrap(run(tracer, self.real.get, ()), Reading(get, base))
        self.is_read = self.is_read or not isinstance(held, Constant)
        return held

    def _set(self, tracer: Tracer, value: Value) -> Value:
        token = ContextToken(self, value, self.content)
        self.writes.add(tracer, token)
        self.content = value
        return token

    def _reset(self, tracer: Tracer, token: Value) -> Value:
        changes = self.writes.changes
        if isinstance(token, ContextToken) and token.variable is self and not token.is_used:
            token.is_used = True
            self.content = token.before
            if changes and changes[-1] is token:
                self.writes.undo(tracer)
                return NONE
        elif isinstance(token, OpaqueValue) and isinstance(token.real, Token) and token.real.var is self.real:
            self.content = None
        else:
            raise UnsupportedCall(f"ContextVar.reset() with a {token.describe()} that is used, or of another variable")
        self.writes.add(tracer, Reset(token))
        return NONE


_METHODS: dict[str, tuple[Callable[..., Value], tuple[int, ...]]] = {
    "get": (ContextVariable._get, (0, 1)),
    "set": (ContextVariable._set, (1,)),
    "reset": (ContextVariable._reset, (1,)),
}


class ContextToken(Value):
    """What `set` returned in the captured code.

    before: what the variable held (None: what it held before the capture). is_used: whether it was given back.
    """

    variable: ContextVariable
    value: Value
    before: Value | None
    is_used: bool = state(default=False)
    cls = Token

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name == "var":
            return self.variable
        if name == "old_value":
            raise UnsupportedCall("the old value of a token")
        return super().get_attribute(tracer, name)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_with(_set_and_reset if self.is_undone() else ContextVar.set, self.variable, self.value)

    def is_undone(self) -> bool:
        """Whether nothing is left of it."""
        return self not in self.variable.writes.changes


class Reset(NamedTuple):
    """A token that is given back out of its turn, or one from outside."""

    token: Value


@dataclass(slots=True, eq=False, repr=False)
class ContextWrites:
    """The side effect: what was set and is still set, in its order."""

    variable: ContextVariable
    changes: list[ContextToken | Reset] = field(default_factory=list)

    def add(self, tracer: Tracer, change: ContextToken | Reset) -> None:
        if not self.changes:
            tracer.effects.append(self)
        self.changes.append(change)

    def undo(self, tracer: Tracer) -> None:
        """The last change is as if it had not been."""
        self.changes.pop()
        if not self.changes:
            tracer.effects.remove(self)

    def prepare(self, emitter: Emitter) -> None:
        """Emit the changes: what is made of the tokens needs real ones.

        Errors: UnsupportedMutation where an object was read from the variable before, which may be read again.
        """
        if self.variable.is_read:
            raise UnsupportedMutation(f"setting {self.variable.real.name!r}, whose value was read before")
        for change in self.changes:
            if isinstance(change, ContextToken):
                emitter.prepare(change)
            else:
                emitter.call_with(ContextVar.reset, self.variable, change.token)
                emitter.pop()


def _set_and_reset(variable: ContextVar[Any], value: Any) -> Token[Any]:
    """A token that has been given back."""
    token = variable.set(value)
    variable.reset(token)
    return token
