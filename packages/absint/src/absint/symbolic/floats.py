"""Floats that are computed of symbolic sizes, or of floats from outside: `n / 2`, `1 / n`, `math.sqrt(n)`.

    term ::= Term("size", polynomial) | Term("number", float) | Term("input", name) | Term(operator, term*)

A `SizeFloat` is a `torch.SymFloat`, which torch takes wherever it takes a number. It is computed as Python does, step
by step in double precision: nothing is simplified. What leads back to ints and to truths does so by integers where
that is exact (`int(n / 2)` is `n // 2`, `n / 2 > 3` is `n > 6`). Whatever else asks for the number fixes the sizes.
What is asked of a float from outside (`given_numbers`) is answered for this call, and becomes a condition.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from absint.symbolic.given_numbers import steps_of
from absint.symbolic.nodes import Node, SizeNode, TruthNode
from stagewire.polynomial import Polynomial, constant

if TYPE_CHECKING:
    from absint.symbolic.shape_env import ShapeEnv

__all__ = ["FUNCTIONS", "OPERATORS", "FloatNode", "SizeFloat", "Term", "make_float", "term_of"]

OPERATORS: dict[str, Callable[..., float]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "pow", "neg")
}
"""By their names in the module `operator`."""
FUNCTIONS: dict[str, Callable[..., float]] = {
    name: getattr(math, name) for name in ("sqrt", "exp", "log", "log2", "log10", "log1p", "expm1")
}
"""Functions of one argument, by their names in the module `math`."""
# Doubles hold integers up to 2**53. What a short factor makes of a size that memory can hold stays below that.
_SHORT = 1 << 12

Fraction = tuple[Polynomial, int]


@dataclass(frozen=True)
class Term:
    """One step of a computation, on a size, a number or other steps; see the grammar of this module."""

    operator: str
    operands: tuple[Any, ...]

    @cached_property
    def fraction(self) -> Fraction | None:
        """(a, b) where it is a / b without any rounding on the way: b is a short power of two."""
        match self.operator:
            case "size":
                return self.operands[0], 1
            case "number":
                return _short(self.operands[0])
            case "input":
                return None
            case "neg" | "add" | "sub" | "mul":
                parts = [part.fraction for part in self.operands]
                return None if None in parts else _lowest(_EXACTLY[self.operator](*parts))
            case "truediv":
                above, below = (part.fraction for part in self.operands)
                if above is None or below is None or below[1] != 1 or below[0].number is None:
                    return None
                divisor = below[0].number
                is_power = 0 < divisor < _SHORT and divisor & (divisor - 1) == 0
                return _lowest((above[0], above[1] * divisor)) if is_power else None
        return None

    @cached_property
    def quotient(self) -> tuple[Polynomial, Polynomial] | None:
        """(a, b) where it is a / b up to rounding. It is whole, or equal to a short number, where a / b is: what is not
        lies farther off than rounding reaches."""
        if self.fraction is not None:
            return self.fraction[0], constant(self.fraction[1])
        match self.operator:
            case "truediv":
                above, below = (part.fraction for part in self.operands)
                return None if above is None or below is None else (above[0] * below[1], below[0] * above[1])
            case "add" | "sub" as name if any(part.fraction is not None for part in self.operands):
                (a, b), (c, d) = sides = [part.quotient or (None, None) for part in self.operands]
                if (None, None) in sides:
                    return None
                return (a * d + c * b if name == "add" else a * d - c * b), b * d  # type: ignore[operator]
        return None

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names of all size symbols in it."""
        parts = [part for part in self.operands if not isinstance(part, (float, str))]
        return frozenset(name for part in parts for name in part.symbols)

    @cached_property
    def inputs(self) -> frozenset[str]:
        """The names of all floats from outside in it."""
        match self.operator:
            case "input":
                return frozenset(self.operands)
            case "size" | "number":
                return frozenset()
        return frozenset(name for part in self.operands for name in part.inputs)

    @property
    def plain(self) -> float | None:
        """The number, where it is one by itself."""
        match self.operator:
            case "number":
                return self.operands[0]
            case "size" if self.operands[0].number is not None:
                return float(self.operands[0].number)
        return None

    def evaluate(self, size: Callable[[Polynomial], int], given: Callable[[str], float]) -> float:
        """The number that it is, where `size` gives what polynomials are, and `given` floats from outside."""
        match self.operator:
            case "size":
                return float(size(self.operands[0]))
            case "number":
                return self.operands[0]
            case "input":
                return given(self.operands[0])
        host = OPERATORS.get(self.operator) or FUNCTIONS[self.operator]
        return host(*[part.evaluate(size, given) for part in self.operands])

    def __str__(self) -> str:
        return f"{self.operator}({', '.join(map(str, self.operands))})"


def _short(number: float) -> Fraction | None:
    if not math.isfinite(number):
        return None
    above, below = number.as_integer_ratio()
    return (constant(above), below) if abs(above) < _SHORT and below < _SHORT else None


def _sum(left: Fraction, right: Fraction) -> Fraction:
    return left[0] * right[1] + right[0] * left[1], left[1] * right[1]


_EXACTLY: dict[str, Callable[..., Fraction]] = {
    "add": _sum,
    "sub": lambda left, right: _sum(left, (-right[0], right[1])),
    "mul": lambda left, right: (left[0] * right[0], left[1] * right[1]),
    "neg": lambda part: (-part[0], part[1]),
}


def _lowest(value: Fraction) -> Fraction | None:
    """In lowest terms; None where it is not short any more."""
    above, below = value
    common = math.gcd(below, *above.terms.values())
    above, below = above.over(common), below // common
    is_short = below < _SHORT and all(abs(count) < _SHORT for count in above.terms.values())
    return (above, below) if is_short else None


class FloatNode(Node):
    """A float of one `ShapeEnv`."""

    __slots__ = ("term",)

    def __init__(self, env: ShapeEnv, term: Term) -> None:
        self.env = env
        self.term = term

    def __str__(self) -> str:
        return str(self.term)

    str = __str__

    is_float = True.__bool__

    @property
    def hint(self) -> float:
        """Its value at capture; assumes nothing."""
        return self.term.evaluate(self.env.hint, self.env.given.hint)

    def number(self) -> float:
        """Its value; fixes the sizes in it."""
        return _fix(self.env, self.term)

    def ask(self, function: str, *arguments: float) -> Any:
        """What a C function of a float says of it, and does in each call; None where no guard can ask that."""
        known = steps_of(self.term)
        return None if known is None else self.env.given.ask(known[0], (*known[1], (function, *arguments)))

    def _new_size(self, function: str) -> Polynomial | None:
        """The int that a C function gives of it, as a size of its own."""
        known = steps_of(self.term)
        return None if known is None else self.env.given.whole(known[0], (*known[1], (function,)))

    def is_constant(self) -> bool:
        return self.term.operator == "number"

    def maybe_as_float(self) -> float | None:
        return self.term.operands[0] if self.is_constant() else None

    def guard_float(self, file: str, line: int) -> float:
        return self.number()

    def guard_bool(self, file: str, line: int) -> bool:
        return bool(self.number())

    def sym_float(self) -> FloatNode:
        return self

    def floor(self) -> SizeNode:
        return SizeNode(self.env, self.whole(math.floor))

    def ceil(self) -> SizeNode:
        return SizeNode(self.env, self.whole(math.ceil))

    def trunc(self) -> SizeNode:
        return SizeNode(self.env, self.whole(math.trunc))

    def whole(self, host: Callable[[float], int]) -> Polynomial:
        """math.floor, math.ceil, math.trunc or round of it: by integers, as a size of its own, or for this call."""
        env, quotient = self.env, self.term.quotient
        if quotient is not None and host is not round and env.known_nonnegative(quotient[1] - 1):
            above, below = map(env.reduce, quotient)
            if host is math.ceil:
                return -env.divide(-above, below)
            if host is math.floor or env.known_nonnegative(above):
                return env.divide(above, below)
        made = self._new_size("float.__round__" if host is round else f"math.{host.__name__}")
        return constant(host(self.number())) if made is None else made

    def compare(self, name: str, other: FloatNode) -> TruthNode:
        """A comparison, by the name that it has in the module `operator`."""
        env, gap = self.env, self._gap(other)
        if gap is None:
            asked: bool | None = self._asked(name, other)
            if asked is None:
                asked = getattr(operator, name)(self.number(), other.number())
            return self.wrap_bool(asked)
        of_sizes: TruthNode = getattr(SizeNode(env, gap), name)(SizeNode(env, constant(0)))
        return of_sizes

    def _asked(self, name: str, other: FloatNode) -> bool | None:
        """The comparison with a number, as a guard can do it."""
        if other.term.plain is not None:
            return self.ask(f"float.__{name}__", other.term.plain)
        if self.term.plain is not None:
            return other.ask(f"float.__{_MIRRORED[name]}__", self.term.plain)
        return None

    def can_compare(self, number: float) -> bool:
        """Whether a comparison with a number fixes nothing."""
        other = FloatNode(self.env, Term("number", (number,)))
        return self._gap(other) is not None or (bool(self.term.inputs) and steps_of(self.term) is not None)

    def _gap(self, other: FloatNode) -> Polynomial | None:
        """A polynomial with the sign of `self - other`."""
        sides = (self.term.quotient, other.term.quotient)
        if None in sides or (self.term.fraction is None and other.term.fraction is None):
            return None
        (a, b), (c, d) = sides  # type: ignore[misc]
        is_positive = all(self.env.known_nonnegative(side - 1) for side in (b, d))
        return a * d - c * b if is_positive else None


def term_of(value: Any) -> Term | None:
    """A size, an int or a float as a step; None for what is no such number."""
    match value:
        case torch.SymFloat() if isinstance(value.node, FloatNode):
            return value.node.term
        case torch.SymInt() if isinstance(value.node, SizeNode):
            return Term("size", (value.node.value,))
        case int():
            return Term("size", (constant(int(value)),))
        case float():
            return Term("number", (float(value),))
    return None


def as_float(number: Any) -> Any:
    """`float(number)`, of a size without fixing it."""
    if isinstance(number, torch.SymInt):
        return SizeFloat(FloatNode(number.node.env, Term("size", (number.node.value,))))
    return number if isinstance(number, torch.SymFloat) else float(number)


def make_whole(number: SizeFloat, host: Callable[[float], int]) -> Any:
    """`host(number)`: math.floor, math.ceil, math.trunc or round."""
    from absint.symbolic.size import make_size

    return make_size(number.node.env, number.node.whole(host))


def _node_term(node: Any) -> Term:
    return node.term if isinstance(node, FloatNode) else Term("size", (node.value,))


def make_float(env: ShapeEnv, name: str, *operands: Any) -> Any:
    """`name` (one of `OPERATORS` or `FUNCTIONS`) of sizes and numbers: a `SizeFloat` where it is one for all sizes that
    the guards let through, else a plain float. NotImplemented where an operand is no such number. Raises what Python
    raises, at the sizes of now.
    """
    parts = [term_of(operand) for operand in operands]
    terms = tuple([part for part in parts if part is not None])
    if len(terms) < len(parts):
        return NotImplemented
    node = FloatNode(env, Term(name, terms))
    return SizeFloat(node) if _is_defined(env, name, terms) else node.number()


def _is_defined(env: ShapeEnv, name: str, parts: tuple[Term, ...]) -> bool:
    """Whether Python gives a float for all sizes that the guards let through."""
    if env.given.is_checked and any(part.inputs for part in parts):
        return True
    check = _DOMAINS.get(name)
    return check is None or check(env, *parts)


def _is_positive(env: ShapeEnv, term: Term) -> bool:
    """Whether it is > 0 by what is known."""
    match term.operator:
        case "size":
            return bool(env.known_nonnegative(term.operands[0] - 1))
        case "number":
            return term.operands[0] > 0
        case "add" | "mul" | "truediv" | "sqrt":
            return all(_is_positive(env, part) for part in term.operands)
        case "pow" | "exp":
            return True  # of what has passed its domain
    return False


def _holds(env: ShapeEnv, name: str, term: Term, number: float) -> bool:
    """Whether the comparison with a number holds, now and for all sizes that the guards let through."""
    node, other = FloatNode(env, term), FloatNode(env, Term("number", (number,)))
    return node.can_compare(number) and node.compare(name, other).decide()


def _is_tame(env: ShapeEnv, base: Term, power: Term) -> bool:
    """Whether a small power of it is a float: it is positive, and neither huge nor tiny."""
    if not base.inputs:
        return _is_positive(env, base)
    is_whole = power.plain is not None and power.plain >= 0 and power.plain.is_integer()
    return _holds(env, "ge", base, -1e70 if is_whole else 1e-70) and _holds(env, "le", base, 1e70)


def _is_small(env: ShapeEnv, power: Term) -> bool:
    if power.inputs:
        return _holds(env, "ge", power, -4.0) and _holds(env, "le", power, 4.0)
    if power.fraction is None:
        return power.plain is not None and abs(power.plain) <= 4
    return power.fraction[0].number is not None and abs(power.fraction[0].number) <= 4


_LOGARITHM: Callable[[ShapeEnv, Term], bool] = lambda env, part: _is_positive(env, part) or _holds(env, "gt", part, 0.0)  # noqa: E731
_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_DOMAINS: dict[str, Callable[..., bool]] = {
    "truediv": lambda env, above, below: _is_positive(env, below) or _holds(env, "ne", below, 0.0),
    "pow": lambda env, base, power: _is_small(env, power) and _is_tame(env, base, power),
    "sqrt": lambda env, part: _is_positive(env, part) or _holds(env, "ge", part, 0.0),
    **dict.fromkeys(("log", "log2", "log10", "log1p"), _LOGARITHM),
    **dict.fromkeys(("exp", "expm1"), lambda env, part: _holds(env, "le", part, 700.0)),
}  # fmt: skip


def _computed(name: str) -> Callable[..., FloatNode]:
    """What C++ calls: as in C++, dividing by zero gives an infinity or nan."""

    def method(*nodes: Any) -> FloatNode:
        env, terms = nodes[0].env, tuple(map(_node_term, nodes))
        node = FloatNode(env, Term(name, terms))
        if _is_defined(env, name, terms):
            return node
        return FloatNode(env, Term("number", (_in_c(name, *[_fix(env, term) for term in terms]),)))

    return method


def _in_c(name: str, first: float, *rest: float) -> float:
    """The operation as C++ does it, on numbers for which Python raises."""
    try:
        return (math.pow if name == "pow" else OPERATORS[name])(first, *rest)
    except OverflowError:
        return math.inf
    except ZeroDivisionError:
        return math.copysign(math.inf, first) if first else math.nan
    except ValueError:  # pow of 0, or of what is negative
        return math.nan if first else math.inf


def _compared(name: str) -> Callable[[FloatNode, Any], TruthNode]:
    return lambda self, other: self.compare(name, FloatNode(self.env, _node_term(other)))


def _fixed(host: Callable[[float, float], float]) -> Callable[[FloatNode, Any], FloatNode]:
    return lambda self, other: self.wrap_float(host(self.number(), _fix(self.env, _node_term(other))))


def _fix(env: ShapeEnv, term: Term) -> float:
    return term.evaluate(env.specialize, env.given.fix)


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
for _name in OPERATORS:
    setattr(FloatNode, _name, _computed(_name))
for _name in ("float_truediv", "float_pow"):
    setattr(FloatNode, _name, getattr(FloatNode, _name.removeprefix("float_")))
for _name in _COMPARISONS:
    setattr(FloatNode, _name, _compared(_name))
for _name, _host in (("mod", math.fmod), ("sym_min", min), ("sym_max", max)):
    setattr(FloatNode, _name, _fixed(_host))


class SizeFloat(torch.SymFloat):
    """A float over size symbols.

    >>> from absint.symbolic import ShapeEnv, make_size
    >>> env = ShapeEnv()
    >>> n = make_size(env, env.create("s0", hint=8))
    >>> half = n / 2
    >>> half * 1.5, half > 1
    (mul(truediv(size(s0), size(2)), number(1.5)), True)
    >>> make_size(env, half.node.whole(math.floor)), [str(relation.left) for relation in env.relations]
    (((s0)//(2)), ['s0'])
    """

    node: FloatNode

    def __init__(self, node: FloatNode) -> None:
        self.node = node

    def __repr__(self) -> str:
        return str(self.node)

    def __hash__(self) -> int:
        return hash(self.node.term)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __float__(self) -> float:
        return self.node.number()

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)

    def __pos__(self) -> Any:
        return self

    def __neg__(self) -> Any:
        return make_float(self.node.env, "neg", self)

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __round__(self, ndigits: int | None = None) -> Any:
        if ndigits is None:
            return make_whole(self, round)
        rounded = self.node.ask("float.__round__", ndigits)
        return round(float(self), ndigits) if rounded is None else rounded

    def is_integer(self) -> bool:
        asked: bool | None = self.node.ask("float.is_integer")
        return float(self).is_integer() if asked is None else asked


def _operator(name: str, swapped: bool) -> Callable[[SizeFloat, Any], Any]:
    def method(self: SizeFloat, other: Any) -> Any:
        sides = (other, self) if swapped else (self, other)
        return make_float(self.node.env, name, *sides)

    return method


def _fixing(host: Callable[[Any, Any], Any], swapped: bool) -> Callable[[SizeFloat, Any], Any]:
    def method(self: SizeFloat, other: Any) -> Any:
        if term_of(other) is None:
            return NotImplemented
        number = other if isinstance(other, (int, float)) else float(other)
        return host(number, float(self)) if swapped else host(float(self), number)

    return method


def _comparison(name: str) -> Callable[[SizeFloat, Any], Any]:
    def method(self: SizeFloat, other: Any) -> Any:
        term = term_of(other)
        if term is None:
            return NotImplemented
        return self.node.compare(name, FloatNode(self.node.env, term)).decide()

    return method


for _name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(SizeFloat, f"__{_name}__", _operator(_name, swapped=False))
    setattr(SizeFloat, f"__r{_name}__", _operator(_name, swapped=True))
for _name, _host in (("floordiv", operator.floordiv), ("mod", operator.mod), ("divmod", divmod)):
    setattr(SizeFloat, f"__{_name}__", _fixing(_host, swapped=False))
    setattr(SizeFloat, f"__r{_name}__", _fixing(_host, swapped=True))
for _name in _COMPARISONS:
    setattr(SizeFloat, f"__{_name}__", _comparison(_name))
