"""What a `random.Random` made by captured code draws from: a stream of the host's; the rest of the class is Python."""

from __future__ import annotations

import _random
from typing import Any

from bytecap.bytecode import rebuild
from bytecap.context_types import Emitter, Tracer
from bytecap.errors import UnsupportedCall
from bytecap.objects.base import Value, state
from bytecap.objects.constant import NONE
from bytecap.objects.signals import fold

_METHODS = frozenset({"random", "getrandbits", "getstate", "setstate", "seed"})


class RandomStream(Value):
    """host: None where it is seeded by the machine: what it draws is another number in each call."""

    host: Any = state(default=None)

    def python_type(self) -> type:
        return _random.Random

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "seed" and (not args or args[0].is_none()):
            self.host = None
            return NONE
        host = _random.Random() if self.host is None and name in ("seed", "setstate") else self.host
        if host is None or name not in _METHODS:
            raise UnsupportedCall(f"{name}() of a random.Random without a seed")
        given = tuple([arg.concrete() for arg in args])
        made = fold(tracer, getattr(host, name), given, {key: value.concrete() for key, value in kwargs.items()})
        self.host = host
        return made

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_function(rebuild.random_stream, None if self.host is None else self.host.getstate())
