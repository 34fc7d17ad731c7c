"""Control flow of the evaluator itself: simulated Python exceptions and values without a real object."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bytecap.errors import StageError

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.objects.base import Value
    from bytecap.objects.cells import CellValue


class NotConcrete(Exception):
    """The abstract value stands for no single Python object that exists now (it holds tensors, or is new)."""


class PythonRaise(Exception):
    """The evaluated program raises `value` (an `ExceptionValue`)."""

    def __init__(self, value: Value) -> None:
        super().__init__(repr(value))
        self.value = value


class Yielded:
    """A generator frame stopped at `yield value`."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


class End:
    """The answer of `next_value` on an exhausted iterator; `value` is the generator's return value."""

    __slots__ = ("value",)

    def __init__(self, value: Value | None = None) -> None:
        self.value = value


class Null:
    """The NULL that CPython pushes beside callables."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NULL"


class Handled:
    """What PUSH_EXC_INFO saves: `outer` was being handled (None: nothing) when the handler of `raised` began."""

    __slots__ = ("outer", "raised")

    def __init__(self, outer: Value | None, raised: Value) -> None:
        self.outer = outer
        self.raised = raised


class Saved:
    """What LOAD_FAST_AND_CLEAR puts aside: the content of a variable and its cell, None where there was none."""

    __slots__ = ("cell", "content")

    def __init__(self, content: Value | None, cell: CellValue | None) -> None:
        self.content = content
        self.cell = cell


class Returned:
    """A frame that reached its return."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


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
