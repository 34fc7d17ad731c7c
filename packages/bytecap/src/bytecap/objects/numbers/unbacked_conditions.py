"""Comparisons of sizes and ints that data decides: `count >= 4`, where nothing that is known says which it is.

The program may state one (`torch._check(count >= 4)`, `assert count >= 4`): from then on it is known, and each call of
the graph checks it. What has to be decided, a branch both sides of which are common, is refused.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NoReturn

from absint.symbolic import dim_of
from bytecap.errors import DataDependent
from bytecap.objects.base import Value
from bytecap.objects.constant import Constant
from bytecap.objects.numbers.symbolic import SymbolicInt, emit_dim
from stagewire.capture import Relation

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.replacement.emit import Emitter

FACT = "Say what holds before this line, by torch._check(...), or use torch.where or masks."
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_FUNCTIONS: dict[str, Any] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class DataCondition(Constant):
    """A bool that data decides: `left operator right`."""

    __slots__ = ("gap", "relation")

    def __init__(self, relation: Relation, gap: Any) -> None:
        Value.__init__(self)
        self.relation = relation
        self.gap = gap  # left - right

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

    def concrete(self) -> NoReturn:
        return self.value

    def describe(self) -> str:
        return f"condition {self.text}"

    def truth(self, tracer: Tracer) -> bool:
        return self.value

    def host(self) -> NoReturn:
        return self.value

    def if_it_is(self, truth: bool) -> Relation:
        """What is known where the condition is `truth`."""
        relation = self.relation
        return relation if truth else Relation(relation.left, _OPPOSITE[relation.operator], relation.right)  # type: ignore[arg-type]

    def reconstruct(self, emitter: Emitter) -> None:
        emit_dim(emitter, self.relation.left, emitter.size_symbol)
        emit_dim(emitter, self.relation.right, emitter.size_symbol)
        emitter.call_function(_FUNCTIONS[self.relation.operator], arguments=2)

    def __repr__(self) -> str:
        return f"<DataCondition {self.text}>"


def condition_of_data(symbol: str, left: Constant, right: Constant) -> DataCondition | None:
    """`left symbol right` where data decides it; None where it is known, or is no comparison of ints."""
    unknown = [side for side in (left, right) if isinstance(side, SymbolicInt) and side.size.node.is_unknown]
    if not unknown or not {left.python_type(), right.python_type()} <= {int, bool}:
        return None
    env = unknown[0].size.node.env
    first, second = left.host(), right.host()
    relation = Relation(dim_of(first), symbol, dim_of(second))  # type: ignore[arg-type]
    return None if env.known(relation) is not None else DataCondition(relation, first - second)
