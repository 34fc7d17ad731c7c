"""Sizes that differ from call to call: ints that are expressions over symbols.

Arithmetic and comparisons stay symbolic (`absint.symbolic`). Whatever else looks at the number (`value`) fixes it: a
relation says so, and the capture holds for this one number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absint.symbolic import Size, SizeFloat, dim_of, is_symbolic
from bytecap.objects.base import Value
from bytecap.objects.constant import Constant
from bytecap.objects.size_floats import SymbolicFloat
from stagewire.capture import Source
from stagewire.expr import Dim, steps_of

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.replacement.emit import Emitter


class SymbolicInt(Constant):
    """An int that is known as an expression over the sizes of the inputs."""

    __slots__ = ("size",)

    def __init__(self, size: Size, source: Source | None = None) -> None:
        Value.__init__(self, source)
        self.size = size

    @property
    def value(self) -> int:  # type: ignore[override]
        """The number of this call; fixes it for all."""
        return int(self.size)

    def python_type(self) -> type:
        return int

    def concrete(self) -> int:
        return int(self.size)

    def host(self) -> Size:
        return self.size

    def stand_in(self) -> int:
        return 0

    def describe(self) -> str:
        return f"size {self.size!r}"

    def truth(self, tracer: Tracer) -> bool:
        return bool(self.size)

    def reconstruct(self, emitter: Emitter) -> None:
        emit_dim(emitter, dim_of(self.size), emitter.size_symbol)

    def __repr__(self) -> str:
        return f"<SymbolicInt {self.size!r}>"


def is_size(value: Value) -> bool:
    """Whether the value is an int that differs from call to call, or a float computed of such ones."""
    return isinstance(value, (SymbolicInt, SymbolicFloat))


def as_value(number: Any) -> Constant:
    """A number that arithmetic on sizes gave."""
    if isinstance(number, SizeFloat):
        return SymbolicFloat(number)
    return SymbolicInt(number) if is_symbolic(number) else Constant(number)


def emit_dim(emitter: Any, dim: Dim, load_symbol: Callable[[str], None]) -> None:
    """Push the number that the expression is worth in the running call."""
    for kind, operand in steps_of(dim):
        match kind:
            case "number":
                emitter.constant(operand)
            case "symbol":
                load_symbol(str(operand))
            case "Min" | "Max":
                emitter.call_function({"Min": min, "Max": max}[kind], arguments=2)
            case _:
                emitter.binary(kind)
