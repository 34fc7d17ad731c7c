"""Cheaper forms of float32 functions where those who use them need less than their own accuracy.

erf(x) + 1 and tanh(x) + 1 lose all but an absolute accuracy of 2**-24 to the sum's rounding: `one_plus_erf` and
`one_plus_tanh` of `prelude.py` compute the sum itself, which near 0 is more accurate than the sum of the two. So does
`tanh_slope` with 1 less the square of tanh(x). exp(x) + 1 does not see that exp is 0 below 2**-126.
"""

from __future__ import annotations

from stagewire.graph import Ref
from stagewire.loop import Compute, Operand, Statement
from stagewire.statements import used_values


class Cheaper:
    """What is cheaper in a kernel.

    summed: values of erf, tanh and exp of which only the sum with 1 is used, or of tanh the square's distance from 1;
    squares: these squares. arguments: the texts of what tanh was taken of, by its values and their squares.
    """

    def __init__(self, statements: tuple[Statement, ...] = ()) -> None:
        self.made = {s.result: s for s in statements if isinstance(s, Compute) and s.dtype == "float32"}
        users: dict[str, list[Statement]] = {}
        for statement in statements:
            for name in used_values(statement):
                users.setdefault(name, []).append(statement)
        self.arguments: dict[str, str] = {}
        self.squares = {
            name
            for name, made in self.made.items()
            if _is_square(made) and all(_is(user, "sub") and user.operands[0] == 1 for user in users.get(name, ()))
        }
        self.summed = {
            name
            for name, made in self.made.items()
            if made.op in ("erf", "tanh", "exp")
            and all(
                _plus_one(user) or (made.op == "tanh" and isinstance(user, Compute) and user.result in self.squares)
                for user in users.get(name, ())
            )
        }

    def form(self, statement: Compute, operands: list[str]) -> str | None:
        """The text of a cheaper form; None if there is none."""
        match statement:
            case Compute(result, "erf" | "tanh" as op) if result in self.summed:
                self.arguments[result] = operands[0]
                return f"one_plus_{op}({operands[0]})"
            case Compute(result, "exp") if result in self.summed:
                return f"exponential({operands[0]})"
            case Compute(_, "add") if _plus_one(statement) and (place := self._sum_at(statement)) is not None:
                return operands[place]
            case Compute(result, "mul", (Ref(name), Ref(other))) if name == other and self._is_sum(name):
                self.arguments[result] = self.arguments[name]
                return operands[0]  # which nothing reads
            case Compute(_, "sub", (_, Ref(name))) if name in self.squares and name in self.arguments:
                return f"tanh_slope({self.arguments[name]})"
            case Compute(_, "div", (Ref(_) as value, divisor), "float32") if self._decays(divisor) == value:
                return f"silu({operands[0]})"
        return None

    def _is_sum(self, name: str) -> bool:
        """Whether what is called so is the sum with 1 already."""
        return name in self.summed and self.made[name].op != "exp"

    def _sum_at(self, addition: Compute) -> int | None:
        names = [operand.name if isinstance(operand, Ref) else "" for operand in addition.operands]
        return next((place for place, name in enumerate(names) if self._is_sum(name)), None)

    def _decays(self, operand: Operand) -> Operand | None:
        """x where the operand is exp(-x) + 1."""
        addition = self.made.get(operand.name) if isinstance(operand, Ref) else None
        if addition is None or not _plus_one(addition):
            return None
        power = next(one for one in addition.operands if isinstance(one, Ref))
        exponential = self.made.get(power.name)
        inner = exponential.operands[0] if exponential is not None and exponential.op == "exp" else None
        negated = self.made.get(inner.name) if isinstance(inner, Ref) else None
        return negated.operands[0] if negated is not None and negated.op == "neg" else None


def _plus_one(statement: Statement) -> bool:
    return _is(statement, "add") and 1 in statement.operands and any(isinstance(o, Ref) for o in statement.operands)  # type: ignore[union-attr]


def _is_square(statement: Compute) -> bool:
    return statement.op == "mul" and isinstance(statement.operands[0], Ref) and len(set(statement.operands)) == 1


def _is(statement: Statement, op: str) -> bool:
    return isinstance(statement, Compute) and statement.op == op and statement.dtype == "float32"
