"""functools.singledispatch: the function for a class is looked up at once, what it was chosen from is guarded."""

from __future__ import annotations

import functools
from abc import ABCMeta, get_cache_token
from typing import TYPE_CHECKING, Any

from bytecap.errors import UnsupportedCall
from bytecap.objects.base import Value
from bytecap.objects.classes import ClassValue
from bytecap.objects.host_calls import run
from stagewire.capture import Cell
from stagewire.capture import DictValue as ValueAt

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.objects.functions import FunctionValue

_DISPATCH: Any = functools.singledispatch(lambda value: None).dispatch
CODE = _DISPATCH.__code__
"""The code of every `dispatch` function."""


def dispatch(tracer: Tracer, function: FunctionValue, args: list[Value]) -> Value:
    """`function.dispatch(cls)`."""
    real: Any = function.real
    if len(args) != 1 or not isinstance(args[0], ClassValue):
        raise UnsupportedCall("dispatch() of what is no class")
    registry = real.__closure__[CODE.co_freevars.index("registry")].cell_contents
    place = tracer.places.handle(registry) if function.source is None else Cell("registry", function.source)
    found = run(tracer, real, (args[0].real,))
    tracer.guards.length(place, len(registry), tracer.line())
    if any(isinstance(cls, ABCMeta) for cls in registry):
        # A class may be registered with an abstract class later.
        tracer.guards.reading(get_cache_token, (), get_cache_token())
    index = next(at for at, value in enumerate(registry.values()) if value is found)
    return tracer.objects.wrap(found, ValueAt(place, index))
