"""Control flow of the evaluator itself: simulated Python exceptions and values without a real object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bytecap.context_types import Tracer, Value
from bytecap.errors import StageError

if TYPE_CHECKING:
    from bytecap.objects.cells import CellValue


class NotConcrete(Exception):
    """The abstract value stands for no single Python object that exists now (it holds tensors, or is new)."""


class PythonRaise(Exception):
    """The evaluated program raises `value` (an `ExceptionValue`)."""

    def __init__(self, value: Value) -> None:
        super().__init__(repr(value))
        self.value = value


@dataclass(slots=True, eq=False)
class Yielded:
    """A generator frame stopped at `yield value`."""

    value: Value


@dataclass(slots=True, eq=False)
class End:
    """The answer of `next_value` on an exhausted iterator; `value` is the generator's return value."""

    value: Value | None = None


class Null:
    """The NULL that CPython pushes beside callables."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NULL"


@dataclass(slots=True, eq=False)
class Handled:
    """What PUSH_EXC_INFO saves: `outer` was being handled (None: nothing) when the handler of `raised` began."""

    outer: Value | None
    raised: Value


@dataclass(slots=True, eq=False)
class Saved:
    """What LOAD_FAST_AND_CLEAR puts aside: the content of a variable and its cell, None where there was none."""

    content: Value | None
    cell: CellValue | None


@dataclass(slots=True, eq=False)
class Returned:
    """A frame that reached its return."""

    value: Value


class Stopped:
    """A frame that was to be evaluated up to here only."""

    __slots__ = ()


STOPPED = Stopped()
NULL = Null()
EXHAUSTED = End()


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
