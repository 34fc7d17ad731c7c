"""Numbers that are symbols: sizes, ints and floats from outside, and what is computed of them.

Ints are expressions over symbols, the sizes of the inputs; floats are those that are given, and those computed of them
or of sizes: `n / 2`, `math.sqrt(n)`. A symbol has the value of this call as its hint, or none where the data decides it
(see below). Arithmetic and comparisons stay symbolic (`absint.symbolic`). Where a torch call takes a float, the graph
computes it, a node for each step; where the program keeps or returns a number, the replacement computes it. Whatever
else looks at the number (`value`) fixes it: a relation says so, and the capture holds for this one number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from absint import symbolic
from absint.forms import symbolic_form
from absint.symbolic import Size, SizeFloat, Term, create_float, make_float
from absint.symbolic.floats import FUNCTIONS, OPERATORS, as_float, term_of
from absint.symbolic.size import sym_max, sym_min
from absint.targets import resolve
from absint.wire import to_arg
from bytecap.context_types import Emitter, TensorValue, Tracer
from bytecap.errors import CannotRebuild, DataDependent
from bytecap.objects.base import Constant, Value
from stagewire.capture import COMPARED, Relation, Source
from stagewire.expr import Dim, dim_of, steps_of
from stagewire.graph import Arg, Node, Ref
from stagewire.graph import Value as GraphValue
from stagewire.types import ScalarType


class SymbolicNumber(Constant):
    """An int or a float that is known as a computation on symbols."""

    number: Size | SizeFloat

    @property
    def value(self) -> int | float:  # type: ignore[override]
        """The number of this call; fixes it for all."""
        return self.python_type()(self.number)  # type: ignore[no-any-return]

    @property
    def is_unbacked(self) -> bool:
        """Whether the data decides it."""
        return self.number.node.is_unbacked

    def python_type(self) -> type:
        return float if isinstance(self.number, SizeFloat) else int

    def host(self) -> Size | SizeFloat:
        return self.number

    def stand_in(self) -> int | float:
        return self.python_type()()  # type: ignore[no-any-return]

    def describe(self) -> str:
        return f"{'number' if isinstance(self.number, SizeFloat) else 'size'} {self.number!r}"

    def truth(self, tracer: Tracer) -> bool:
        return bool(self.number)

    def reconstruct(self, emitter: Emitter) -> None:
        if isinstance(self.number, SizeFloat):
            _emit(emitter, self.number.node.term)
        else:
            emit_dim(emitter, symbolic.dim_of(self.number), emitter.symbol)

    def __repr__(self) -> str:
        return f"<SymbolicNumber {self.number!r}>"


class NestedInt(SymbolicNumber):
    """The ragged size of a jagged tensor, or a multiple of it: torch's own symbol, one for each tensor of offsets."""

    @property
    def value(self) -> torch.SymInt:  # type: ignore[override]
        return self.number

    is_unbacked = False

    def python_type(self) -> type:
        return torch.SymInt

    def stand_in(self) -> torch.SymInt:  # type: ignore[override]
        return self.number

    def truth(self, tracer: Tracer) -> bool:
        return True

    def reconstruct(self, emitter: Emitter) -> None:
        node = self.number.node
        for wrapper in emitter.tracer.inputs.wrappers.values():
            for dim, size in enumerate(wrapper.abstract.size()):
                if is_nested_int(size) and size.node.nested_int() == node.nested_int():
                    emitter.load(wrapper)
                    emitter.call_function(torch.Tensor.size, dim, arguments=1)
                    emitter.constant(node.nested_int_coeff())
                    emitter.binary("*")
                    return
        raise CannotRebuild(f"the ragged size {self.number} of a tensor that is not there any more")


def symbols_in(value: SymbolicNumber) -> frozenset[str]:
    """The names of the symbols that it is computed of."""
    node = value.number.node
    return node.term.symbols if isinstance(value.number, SizeFloat) else node.value.symbols  # type: ignore[no-any-return]


def is_nested_int(number: Any) -> bool:
    return isinstance(number, torch.SymInt) and number.node.is_nested_int()


def is_symbolic(value: Value, kind: type | None = None) -> bool:
    """Whether the value is a number that differs from call to call, of this type."""
    return isinstance(value, SymbolicNumber) and kind in (None, value.python_type())


def as_value(number: Any, source: Source | None = None) -> Constant:
    """A number that arithmetic on symbols gave."""
    if is_nested_int(number):
        return NestedInt(number, source)
    if isinstance(number, (torch.SymInt, torch.SymFloat)):
        return SymbolicNumber(number, source)
    return Constant(number)


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
            emit_dim(emitter, dim_of(term.operands[0]), emitter.symbol)
            emitter.call_function(float, arguments=1)
        case "symbol":
            emitter.symbol(term.operands[0])
        case name:
            for part in term.operands:
                _emit(emitter, part)
            emitter.call_function(resolve(target_of(name)), arguments=len(term.operands))


def compute_of_sizes(function: Callable[..., Any], args: list[Value]) -> Any:
    """A function of numbers, of which one is computed of sizes, as a number that still is; None where it is none."""
    if not args or not all(isinstance(arg, Constant) for arg in args) or not any(map(is_symbolic, args)):
        return None
    if (function in _OF_ONE or function in _OF_DOUBLES) and len(args) == 1:
        return (_OF_ONE.get(function) or symbolic_form(function))(args[0].host())  # type: ignore[attr-defined]
    if function is not math.pow or len(args) != 2:
        return None
    sides = [as_float(arg.host()) for arg in args]  # type: ignore[arg-type]
    nodes = [side.node for side in sides if isinstance(side, SizeFloat)]
    # (Of data it is a step of its own, which is never complex.)
    return make_float(nodes[0].env, "math.pow" if any(node.is_unbacked for node in nodes) else "pow", *sides)


_OF_DOUBLES = frozenset(getattr(math, name) for name in FUNCTIONS)
_OF_ONE: dict[Any, Callable[[Any], Any]] = {
    float: as_float, int: math.trunc,
    **{each: each for each in (math.floor, math.ceil, math.trunc, round, abs, operator.neg, operator.pos)},
}  # fmt: skip


def write_term(tracer: Tracer, term: Term) -> Arg:
    """The number as nodes of the graph, each step once; fixed in functions of it, which are given tensors alone."""
    if term.operator == "number":
        return to_arg(term.operands[0])
    graph = tracer.graph
    if graph.is_body:
        return to_arg(float(SizeFloat(tracer.sizes.env, term)))
    name = graph.floats.get(term)
    if name is None:
        if term.operator == "symbol":
            (name,) = term.operands
            if name not in graph.numbers:
                name = graph.floats[term] = tracer.sizes.add_input(name)
            return Ref(name)
        if term.operator == "size":
            target, args = "torch.sym_float", (dim_of(term.operands[0]),)
        else:
            target, args = target_of(term.operator), tuple([write_term(tracer, part) for part in term.operands])
        name = graph.floats[term] = add_number(tracer, target, args, "float")
    return Ref(name)


def target_of(step: str) -> str:
    """The function that does a step of a `Term`."""
    module = "torch" if step.startswith("sym_") else "operator" if step in OPERATORS else "math"
    return step if "." in step else f"{module}.{step}"


def add_number(tracer: Tracer, target: str, args: tuple[Arg, ...], kind: Any, name: str | None = None) -> str:
    """Append a node that gives a number; returns its name."""
    tracer.sizes.read_made(args)
    name = name or tracer.graph.name("number")
    tracer.graph.append(Node(target, args, {}, (GraphValue(name, ScalarType(kind)),), tracer.line()))
    return name


# -- Unbacked numbers, which the data decides: `loss.item()`, how many elements a mask selects.
#
# number    ::= node torch.Tensor.size(tensor, dim) -> int       a size
#             | node torch.Tensor.item(tensor) -> int | float
#             | node operator.truediv(number, number) -> float    what Python computes of a float, step by step
# condition ::= number operator number                            of ints: `count >= 4`
#
# They are symbols without a hint. What needs the number itself, a branch or a loop, is refused. A condition
# may be stated (`torch._check(count >= 4)`, `assert count >= 4`): from then on it is known, and each call of the graph
# checks it. Only for backends that say `takes_data_sizes = True`; those that say `breaks_at_data = True` besides have
# graphs end at such a line, unless the whole frame is to be one graph.
#

FACT = "Say what holds before this line, by torch._check(...), or use torch.where or masks."
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


class DataCondition(Constant):
    """A bool that data decides: `left operator right`."""

    relation: Relation
    gap: Any  # left - right
    words = "condition {0.text}"

    @property
    def value(self) -> NoReturn:  # type: ignore[override]
        """Refused: only the running graph knows it."""
        raise DataDependent(f"whether {self.text} depends on data", fix=FACT)

    @property
    def text(self) -> str:
        """As the program could write it."""
        return f"{self.relation.left} {self.relation.operator} {self.relation.right}"

    def python_type(self) -> type:
        return bool

    def if_it_is(self, truth: bool) -> Relation:
        """What is known where the condition is `truth`."""
        relation = self.relation
        return relation if truth else Relation(relation.left, _OPPOSITE[relation.operator], relation.right)  # type: ignore[arg-type]

    def reconstruct(self, emitter: Emitter) -> None:
        emit_dim(emitter, self.relation.left, emitter.symbol)
        emit_dim(emitter, self.relation.right, emitter.symbol)
        emitter.call_function(COMPARED[self.relation.operator], arguments=2)

    def __repr__(self) -> str:
        return f"<DataCondition {self.text}>"


def condition_of_data(symbol: str, left: Constant, right: Constant) -> DataCondition | None:
    """`left symbol right` where data decides it; None where it is known, or is no comparison of ints."""
    unknown = [side for side in (left, right) if isinstance(side, SymbolicNumber) and side.is_unbacked]
    if not unknown or not {left.python_type(), right.python_type()} <= {int, bool}:
        return None
    env = unknown[0].number.node.env
    first, second = left.host(), right.host()
    relation = Relation(symbolic.dim_of(first), symbol, symbolic.dim_of(second))  # type: ignore[arg-type]
    return None if env.known(relation) is not None else DataCondition(relation, first - second)


def read_number(tracer: Tracer, tensor: TensorValue, method: Callable[..., Any]) -> Value:
    """`tensor.item()`, or its `__int__` or `__float__`, as a node: one of each until the tensor is written."""
    dtype = tensor.abstract.dtype
    is_float = method is torch.Tensor.__float__ or (method is torch.Tensor.item and dtype.is_floating_point)
    if tensor.abstract.numel() != 1:
        raise tracer.raises(
            RuntimeError, f"a Tensor with {tensor.abstract.numel()} elements cannot be converted to Scalar"
        )
    if dtype.is_complex or (dtype is torch.bool and method is torch.Tensor.item):
        raise DataDependent(f"{method.__name__}() of a {tensor.describe()} depends on its content")
    target = f"torch.Tensor.{method.__name__}"
    key = tensor.name, tensor.abstract.storage_record.version, target
    if key not in tracer.graph.read:
        if is_float:
            number = create_float(tracer.sizes.env, _add(tracer, target, (Ref(tensor.name),), "float"))
        else:
            number = define_int(tracer, target, Ref(tensor.name))
        tracer.graph.read[key] = number
    number = tracer.graph.read[key]
    return SymbolicNumber(number) if is_float else as_value(number)


def read_size(tracer: Tracer, tensor: str, dim: int, symbol: str) -> None:
    """Have the graph read the size of a result of its own."""
    _add(tracer, "torch.Tensor.size", (Ref(tensor), dim), "int", symbol)


def define_int(tracer: Tracer, target: str, of: Ref) -> Any:
    """An int that a node gives: a symbol without a hint."""
    size = tracer.sizes.create_unbacked(tracer.graph.name("number"), None, None)
    _add(tracer, target, (of,), "int", str(size))
    return size


def define_float(tracer: Tracer, step: Term) -> SizeFloat:
    """What Python computes of numbers of which the data decides one, as a node that does this step."""
    if step.operator == "pow":
        raise DataDependent("a power of a number that depends on the content of a tensor may be complex")
    args = [dim_of(part.operands[0]) if part.operator == "size" else write_term(tracer, part) for part in step.operands]
    return create_float(tracer.sizes.env, _add(tracer, target_of(step.operator), tuple(args), "float"))


def extreme(tracer: Tracer, items: list[Value], *, least: bool) -> Value | None:
    """min() or max() of ints, or of floats, of which the data decides one; None where it is none."""
    kinds = {item.python_type() for item in items}
    if kinds not in ({int}, {float}) or not any(
        isinstance(item, SymbolicNumber) and item.is_unbacked for item in items
    ):
        return None
    found, *others = [item.host() for item in items]  # type: ignore[attr-defined]
    for other in others:
        if kinds == {float}:
            step = Term("sym_min" if least else "sym_max", (term_of(found), term_of(other)))
            found = tracer.sizes.define(SizeFloat(tracer.sizes.env, step))
        else:
            found = sym_min(found, other) if least else sym_max(found, other)
    return as_value(found)


def _add(tracer: Tracer, target: str, args: tuple[Arg, ...], kind: Any, name: str | None = None) -> str:
    name = add_number(tracer, target, args, kind, name)
    tracer.graph.numbers.add(name)
    return name
