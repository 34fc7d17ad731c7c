"""Host calls on real objects, done at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bytecap.errors import StageError
from bytecap.objects.signals import NotConcrete, PythonRaise

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.objects.base import Value


def run(tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any = None) -> Any:
    """Call `function` on real objects; what it raises is raised in the evaluated program."""
    try:
        return function(*args, **(kwargs or {}))
    except (PythonRaise, NotConcrete, StageError):
        raise
    except Exception as error:
        raise tracer.raises_real(error) from None


def fold(tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any = None) -> Value:
    """The result of a pure host call as a new value."""
    return tracer.objects.fresh(run(tracer, function, args, kwargs))
