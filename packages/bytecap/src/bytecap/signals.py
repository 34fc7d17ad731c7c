"""Control flow of the evaluator itself: simulated Python exceptions and values without a real object."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bytecap.values.base import Value


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


NULL = Null()
EXHAUSTED = End()
