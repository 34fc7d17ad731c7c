"""os.environ: the variables that captured code reads are guarded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from bytecap.objects.base import Value
from bytecap.objects.constant import Constant

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer

_DATA: Any = os.environ._data  # type: ignore[attr-defined]
"""The dictionary under os.environ: encoded names and values."""
_GET = _DATA.get


def is_environment(real: Any) -> bool:
    """Whether a dict is the one under os.environ."""
    return real is _DATA


def guard_variable(tracer: Tracer, name: Any) -> None:
    """The variable of this (encoded) name has the value that it has now, or none as now."""
    place = tracer.places.reading(_GET, tracer.places.guarded(name))
    tracer.guards.identity(place, _DATA.get(name), tracer.line())


def guard_all(tracer: Tracer) -> None:
    """All variables are as they are now."""
    for name in _DATA:
        guard_variable(tracer, name)
    tracer.guards.length(tracer.places.guarded(_DATA), len(_DATA), tracer.line())


def get_variable(tracer: Tracer, key: Value, default: Value = Constant(None)) -> Value:  # noqa: B008
    """os.environ.get, os.getenv."""
    name = key.concrete()
    if not isinstance(name, str):
        raise tracer.raises(TypeError, f"str expected, not {type(name).__name__}")
    guard_variable(tracer, os.environ.encodekey(name))  # type: ignore[attr-defined]
    return Constant(os.environ[name]) if name in os.environ else default
