"""Context variables (`contextvars.ContextVar`) from outside: what they hold, and what is set is set again at each run.

A token that is given back in its turn leaves nothing to do. Tokens that are left, where a graph ends between `set`
and `reset`, are real ones in the code behind it.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any, ClassVar, NamedTuple

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
            tracer.guards.identity(Reading(get, base, (AnyObject(),)), ..., tracer.line())
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
