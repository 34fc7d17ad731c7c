"""Unbacked numbers, which the data decides: `loss.item()`, how many elements a mask selects.

number    ::= node torch.Tensor.size(tensor, dim) -> int       a size
            | node torch.Tensor.item(tensor) -> int | float
            | node operator.truediv(number, number) -> float    what Python computes of a float, step by step
condition ::= number operator number                            of ints: `count >= 4`

They are symbols without a hint (`symbolic`). What needs the number itself, a branch or a loop, is refused. A condition
may be stated (`torch._check(count >= 4)`, `assert count >= 4`): from then on it is known, and each call of the graph
checks it. Only for backends that say `takes_data_sizes = True`; those that say `breaks_at_data = True` besides have
graphs end at such a line, unless the whole frame is to be one graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from absint import symbolic
from absint.symbolic import SizeFloat, Term, create_float
from absint.symbolic.floats import term_of
from absint.symbolic.size import sym_max, sym_min
from bytecap.context_types import Emitter, TensorValue, Tracer
from bytecap.errors import DataDependent
from bytecap.objects.base import Constant, Value
from bytecap.objects.numbers.symbolic import SymbolicNumber, add_number, as_value, emit_dim, target_of, write_term
from stagewire.capture import COMPARED, Relation
from stagewire.expr import dim_of
from stagewire.graph import Arg, Ref

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
    """`tensor.item()`, or its `__int__` or `__float__`, as a node."""
    dtype = tensor.abstract.dtype
    is_float = method is torch.Tensor.__float__ or (method is torch.Tensor.item and dtype.is_floating_point)
    if tensor.abstract.numel() != 1:
        raise tracer.raises(
            RuntimeError, f"a Tensor with {tensor.abstract.numel()} elements cannot be converted to Scalar"
        )
    if dtype.is_complex or (dtype is torch.bool and method is torch.Tensor.item):
        raise DataDependent(f"{method.__name__}() of a {tensor.describe()} depends on its content")
    target = f"torch.Tensor.{method.__name__}"
    if is_float:
        name = _add(tracer, target, (Ref(tensor.name),), "float")
        return SymbolicNumber(create_float(tracer.sizes.env, name))
    return as_value(define_int(tracer, target, Ref(tensor.name)))


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
