"""Floats that a program is given from outside, and that differ from call to call.

    steps ::= (function, argument*)*        ("float.__mul__", 2.0), ("math.sqrt",): what is computed of one such float

Nothing is known of such a float but what was asked of it: an environment has one `GivenNumbers`, which answers by the
value of this call and writes the question down, or refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absint.errors import FixedNumber

if TYPE_CHECKING:
    from absint.symbolic.floats import Term

__all__ = ["GivenNumbers", "Steps", "steps_of"]

Steps = tuple[tuple[Any, ...], ...]
# A guard does all steps again in each call.
_MOST_STEPS = 20


class GivenNumbers:
    """Knows nothing and assumes nothing: each question is a `FixedNumber`.

    is_checked: whether what Python computes of such floats is known not to raise, because another environment asked.
    """

    def __init__(self, *, is_checked: bool = False) -> None:
        self.is_checked = is_checked

    def hint(self, name: str) -> float:
        """Its value at capture; assumes nothing."""
        raise FixedNumber(name)

    def fix(self, name: str) -> float:
        """Its value, from now on for all calls."""
        raise FixedNumber(name)

    def ask(self, name: str, steps: Steps) -> Any:
        """What the last of the steps gives, from now on for all calls."""
        raise FixedNumber(name)


def steps_of(term: Term) -> tuple[str, Steps] | None:
    """(name, steps) of a computation on one given float and on numbers; None where it is none, or a long one."""
    if term.operator == "input":
        return term.operands[0], ()
    if term.operator in ("size", "number"):
        return None
    open_parts = [at for at, part in enumerate(term.operands) if part.plain is None]
    if len(open_parts) != 1:
        return None
    (at,) = open_parts
    inner = steps_of(term.operands[at])
    if inner is None or len(inner[1]) == _MOST_STEPS:
        return None
    others = tuple([part.plain for number, part in enumerate(term.operands) if number != at])
    return inner[0], (*inner[1], (_function(term.operator, swapped=at == 1), *others))


def _function(operator: str, *, swapped: bool) -> str:
    """The C function that computes it, which takes a float first."""
    if operator in ("add", "sub", "mul", "truediv", "pow", "neg"):
        return f"float.__{'r' if swapped else ''}{operator}__"
    return f"math.{operator}"
