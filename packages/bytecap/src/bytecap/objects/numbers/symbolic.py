"""Numbers that differ from call to call: sizes, floats from outside, and what is computed of them.

Ints are expressions over the sizes of the inputs; floats are those that are given, and those computed of them or of
sizes: `n / 2`, `math.sqrt(n)`. Arithmetic and comparisons stay symbolic (`absint.symbolic`). Where a torch call takes
a float, the graph computes it, a node for each step; where the program keeps or returns a number, the replacement
computes it. Whatever else looks at the number (`value`) fixes it: a relation says so, and the capture holds for this
one number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absint import symbolic
from absint.symbolic import Size, SizeFloat, Term, is_symbolic, make_float
from absint.symbolic.floats import FUNCTIONS, OPERATORS, as_float, make_whole
from absint.wire import to_arg
from bytecap.objects.base import Value
from bytecap.objects.constant import Constant
from stagewire.capture import Source
from stagewire.expr import Dim, dim_of, steps_of
from stagewire.graph import Arg, Node, Ref
from stagewire.graph import Value as GraphValue
from stagewire.types import ScalarType

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.replacement.emit import Emitter


class SymbolicFloat(Constant):
    """A float that is known as a computation on the sizes of the inputs, and on floats among them."""

    __slots__ = ("number",)

    def __init__(self, number: SizeFloat) -> None:
        Value.__init__(self, None)
        self.number = number

    @property
    def value(self) -> float:  # type: ignore[override]
        """The number of this call; fixes the sizes in it for all."""
        return float(self.number)

    def python_type(self) -> type:
        return float

    def concrete(self) -> float:
        return float(self.number)

    def host(self) -> SizeFloat:
        return self.number

    def stand_in(self) -> float:
        return 0.0

    def describe(self) -> str:
        return f"number {self.number!r}"

    def truth(self, tracer: Tracer) -> bool:
        return bool(self.number)

    def reconstruct(self, emitter: Emitter) -> None:
        _emit(emitter, self.number.node.term)

    def __repr__(self) -> str:
        return f"<SymbolicFloat {self.number!r}>"


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
        emit_dim(emitter, symbolic.dim_of(self.size), emitter.size_symbol)

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


def _emit(emitter: Any, term: Term) -> None:
    match term.operator:
        case "number":
            emitter.constant(term.operands[0])
        case "size":
            emit_dim(emitter, dim_of(term.operands[0]), emitter.size_symbol)
            emitter.call_function(float, arguments=1)
        case "input":
            emitter.given_float(term.operands[0])
        case name:
            for part in term.operands:
                _emit(emitter, part)
            emitter.call_function(getattr(operator if name in OPERATORS else math, name), arguments=len(term.operands))


def compute_of_sizes(function: Callable[..., Any], args: list[Value]) -> Any:
    """A function of numbers, of which one is computed of sizes, as a number that still is; None where it is none."""
    if not args or not all(isinstance(arg, Constant) for arg in args) or not any(map(is_size, args)):
        return None
    if function is float and len(args) == 1:
        return as_float(args[0].host())  # type: ignore[arg-type]
    if function in _ROUNDING and len(args) == 1:
        return _whole(args[0].host(), _ROUNDING[function])  # type: ignore[arg-type]
    if function in _SIGNS and len(args) == 1:
        return function(args[0].host())  # type: ignore[arg-type]
    name = _NAMES.get(function)
    if name is None or len(args) != (2 if name == "pow" else 1):
        return None
    sides = [as_float(arg.host()) for arg in args]  # type: ignore[arg-type]
    env = next(side.node.env for side in sides if isinstance(side, SizeFloat))
    found = make_float(env, name, *sides)
    return None if found is NotImplemented else found


_NAMES: dict[Any, str] = {getattr(math, name): name for name in (*FUNCTIONS, "pow")}
_SIGNS = (abs, operator.neg, operator.pos)
_ROUNDING: dict[Any, Callable[[float], int]] = {
    math.floor: math.floor, math.ceil: math.ceil, math.trunc: math.trunc, int: math.trunc, round: round,
}  # fmt: skip


def _whole(number: Any, host: Callable[[float], int]) -> Any:
    if not isinstance(number, SizeFloat):
        return number
    return make_whole(number, host)


def write_float(tracer: Tracer, number: SizeFloat) -> Ref | float:
    """The number as nodes of the graph, each step once."""
    return _written(tracer, number.node.term)  # type: ignore[return-value]


def _written(tracer: Tracer, term: Term) -> Arg:
    if term.operator == "number":
        return to_arg(term.operands[0])
    graph = tracer.graph
    name = graph.floats.get(term)
    if name is None:
        if term.operator == "input":
            name = graph.floats[term] = tracer.floats.add_input(term.operands[0])
            return Ref(name)
        if term.operator == "size":
            target, args = "torch.sym_float", (dim_of(term.operands[0]),)
        else:
            target = f"{'operator' if term.operator in OPERATORS else 'math'}.{term.operator}"
            args = tuple([_written(tracer, part) for part in term.operands])
        name = graph.floats[term] = graph.name("number")
        graph.append(Node(target, args, {}, (GraphValue(name, ScalarType("float")),), tracer.line()))
    return Ref(name)
