"""Floats that differ from call to call: given ones, and those computed of them or of sizes: `n / 2`, `math.sqrt(n)`.

Arithmetic stays symbolic (`absint.symbolic.floats`). Where a torch call takes one, the graph computes it, a node for
each step; where the program keeps or returns it, the replacement does. Whatever else looks at the number fixes the
sizes in it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absint.symbolic import SizeFloat, Term, make_float
from absint.symbolic.floats import FUNCTIONS, OPERATORS, as_float, make_whole
from absint.wire import to_arg
from bytecap.objects.base import Value
from bytecap.objects.constant import Constant
from stagewire.expr import dim_of
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


def _emit(emitter: Any, term: Term) -> None:
    from bytecap.objects.sizes import emit_dim

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
    from bytecap.objects.sizes import is_size

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
