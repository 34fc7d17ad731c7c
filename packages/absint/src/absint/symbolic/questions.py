"""What is asked of symbols whose value differs from call to call, and becomes a condition on each call.

    leaf  ::= Term("symbol", name) | Term("size", of one symbol)
    steps ::= (function, argument*)*        ("float.__mul__", 2.0), ("math.sqrt",): what is computed of one such number

Nothing is known of a float but what was asked of it: an environment has one `Questions`, which answers by the hints
and writes the question down, or refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absint.errors import FixedNumber
from stagewire.polynomial import Polynomial, symbol

if TYPE_CHECKING:
    from absint.symbolic.floats import SizeFloat, Term

Steps = tuple[tuple[Any, ...], ...]
# A guard does all steps again in each call.
_MOST_STEPS = 20


class Questions:
    """Knows nothing and assumes nothing: each question is a `FixedNumber`.

    some_number: what C++ is given for a double that data decides (types of results do not depend on it); None: nothing.
    """

    some_number: float | None = None

    def define(self, step: SizeFloat) -> SizeFloat:
        """A step on numbers of which one has no hint: the number that is computed with from here on."""
        return step

    def fix(self, name: str) -> float:
        """The value of a float symbol, from now on for all calls."""
        raise FixedNumber(name)

    def ask(self, leaf: Term, steps: Steps) -> Any:
        """What the last of the steps gives, from now on for all calls; None where no guard can ask that."""
        if leaf.operator == "symbol":
            raise FixedNumber(leaf.operands[0])
        return None

    def whole(self, leaf: Term, steps: Steps) -> Polynomial | None:
        """The int that the last of the steps gives, as a size of its own; None where it is none."""
        return None


def steps_of(term: Term) -> tuple[Term, Steps] | None:
    """(leaf, steps) of a computation on one given number and on constants; None where it is none, or a long one."""
    match term.operator:
        case "symbol":
            return term, ()
        case "size":
            return _size_steps(term)
        case "number":
            return None
    open_parts = [at for at, part in enumerate(term.operands) if part.plain is None]
    if len(open_parts) != 1:
        return None
    (at,) = open_parts
    inner = steps_of(term.operands[at])
    if inner is None or len(inner[1]) >= _MOST_STEPS:
        return None
    others = tuple([part.plain for number, part in enumerate(term.operands) if number != at])
    return inner[0], (*inner[1], (_function(term.operator, swapped=at == 1), *others))


def _size_steps(term: Term) -> tuple[Term, Steps] | None:
    """`a * n + b` as a float."""
    value = term.operands[0]
    if len(value.symbols) != 1:
        return None
    (name,) = value.symbols
    slope = next(count for key, count in value.terms.items() if key)
    if value - value.offset != symbol(name) * slope:
        return None
    scaled = (("int.__mul__", slope),) if slope != 1 else ()
    moved = (("int.__add__", value.offset),) if value.offset else ()
    return type(term)("size", (symbol(name),)), (*scaled, *moved, ("int.__float__",))


def _function(operator: str, *, swapped: bool) -> str:
    """The C function that computes it, which takes a float first."""
    if operator in ("add", "sub", "mul", "truediv", "pow", "neg"):
        return f"float.__{'r' if swapped else ''}{operator}__"
    return f"math.{operator}"
