"""Floats that are computed of symbolic sizes, or of floats from outside: `n / 2`, `1 / n`, `math.sqrt(n)`.

    term ::= Term("size", polynomial) | Term("number", float) | Term("symbol", name) | Term(operator, term*)

A `SizeFloat` is a `torch.SymFloat`, which torch takes wherever it takes a number. It is computed as Python does, step
by step in double precision: nothing is simplified. What leads back to ints and to truths does so by integers where
that is exact (`int(n / 2)` is `n // 2`, `n / 2 > 3` is `n > 6`). Whatever else asks for the number fixes the sizes.
A float symbol (`create_float`) is a float from outside. What is asked of it (`Questions`) is answered by its
hint, and becomes a condition. One without a hint is decided by data (`loss.item()`): whoever evaluates may make what is
computed of it the next such symbol, and a question about it is refused.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from absint.symbolic.nodes import Node, SizeNode, TruthNode, polynomial_of
from stagewire.polynomial import Polynomial, constant

if TYPE_CHECKING:
    from absint.symbolic.shape_env import ShapeEnv

OPERATORS: dict[str, Callable[..., float]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "abs")
}
"""By their names in the module `operator`."""
FUNCTIONS: dict[str, Callable[..., float]] = {
    name: getattr(math, name)
    for name in ("sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tanh")
}
"""Functions of one argument, by their names in the module `math`."""
# Doubles hold integers up to 2**53. What a short factor makes of a size that memory can hold stays below that.
_SHORT = 1 << 12
# Below it, products of the parts of two quotients tell these apart in double precision.
_APART = 1 << 52


class Ratio(NamedTuple):
    """above / below, up to rounding. is_exact: without any, on the way too; `below` is a short power of two."""

    above: Polynomial
    below: Polynomial
    is_exact: bool


@dataclass(frozen=True)
class Term:
    """One step of a computation, on a size, a number or other steps; see the grammar of this module."""

    operator: str
    operands: tuple[Any, ...]

    @cached_property
    def ratio(self) -> Ratio | None:
        """What it is as a fraction of sizes. One with rounding is whole, or equal to a short number, where a / b is:
        what is not lies farther off than rounding reaches."""
        match self.operator:
            case "size":
                return Ratio(self.operands[0], constant(1), True)
            case "number" if math.isfinite(self.operands[0]):
                return _lowest(*map(constant, self.operands[0].as_integer_ratio()))
            case name if name in _FRACTIONS:
                parts = [part.ratio for part in self.operands]
                if None in parts:
                    return None
                made, exact = _FRACTIONS[name](*parts), [part.is_exact for part in parts]
                if all(exact) and (lowest := _lowest(*made)) is not None:
                    return lowest
                is_near = all(exact) if name == "truediv" else any(exact) and name in ("add", "sub")
                return Ratio(*made, False) if is_near else None
        return None

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names of all symbols in it."""
        if self.operator == "symbol":
            return frozenset(self.operands)
        return frozenset(name for part in self.operands if not isinstance(part, float) for name in part.symbols)

    @cached_property
    def has_floats(self) -> bool:
        """Whether it is computed of float symbols, not of sizes alone."""
        return self.operator == "symbol" or any(isinstance(part, Term) and part.has_floats for part in self.operands)

    @property
    def plain(self) -> float | None:
        """The number, where it is one by itself."""
        match self.operator:
            case "number":
                return self.operands[0]
            case "size" if self.operands[0].number is not None:
                return float(self.operands[0].number)
        return None

    def evaluate(self, size: Callable[[Polynomial], int], symbol: Callable[[str], float]) -> float:
        """The number that it is, where `size` gives what polynomials are, and `symbol` what float symbols are."""
        match self.operator:
            case "size":
                return float(size(self.operands[0]))
            case "number":
                return self.operands[0]
            case "symbol":
                return symbol(self.operands[0])
        host = OPERATORS.get(self.operator) or FUNCTIONS[self.operator]
        return host(*[part.evaluate(size, symbol) for part in self.operands])

    def __str__(self) -> str:
        return f"{self.operator}({', '.join(map(str, self.operands))})"


_FRACTIONS: dict[str, Callable[..., tuple[Polynomial, Polynomial]]] = {
    "add": lambda left, right: (left.above * right.below + right.above * left.below, left.below * right.below),
    "sub": lambda left, right: (left.above * right.below - right.above * left.below, left.below * right.below),
    "mul": lambda left, right: (left.above * right.above, left.below * right.below),
    "truediv": lambda left, right: (left.above * right.below, left.below * right.above),
    "neg": lambda part: (-part.above, part.below),
}


def _lowest(above: Polynomial, below: Polynomial) -> Ratio | None:
    """The exact one in lowest terms; None where doubles may round it."""
    if below.number is None or below.number <= 0:
        return None
    common = math.gcd(below.number, *above.terms.values())
    above, divisor = above.over(common), below.number // common
    is_short = divisor < _SHORT and all(abs(count) < _SHORT for count in above.terms.values())
    return Ratio(above, constant(divisor), True) if is_short and divisor & (divisor - 1) == 0 else None


class SizeFloat(Node, torch.SymFloat):
    """A float of one `ShapeEnv`: to Python a number, and its own node to C++.

    >>> from absint.symbolic import ShapeEnv, make_size
    >>> env = ShapeEnv()
    >>> n = make_size(env, env.create("s0", hint=8))
    >>> half = n / 2
    >>> half * 1.5, half > 1
    (mul(truediv(size(s0), size(2)), number(1.5)), True)
    >>> make_size(env, half.whole(math.floor)), [str(relation.left) for relation in env.relations]
    ((s0)//(2), ['s0'])
    """

    def __init__(self, env: ShapeEnv, term: Term) -> None:
        self.env = env
        self.term = term

    @property
    def node(self) -> SizeFloat:  # type: ignore[override]
        """What C++ asks."""
        return self

    def __repr__(self) -> str:
        return str(self.term)

    __str__ = str = __repr__

    is_float = True.__bool__

    @property
    def is_unbacked(self) -> bool:
        """Whether data decides it."""
        env = self.env
        return any(name in env.unbacked or name not in env.hints for name in self.term.symbols)

    @property
    def hint(self) -> float:
        """Its value at capture; assumes nothing. Data decides some: `DataDependentError`."""
        return self.number() if self.is_unbacked else self.term.evaluate(self.env.hint, self.env.hints.__getitem__)

    def number(self) -> float:
        """Its value; fixes the sizes in it."""
        return self.term.evaluate(self.env.specialize, self.env.questions.fix)

    def ask(self, function: Callable[..., Any], *arguments: float) -> Any:
        """What a C function of a float says of it, and does in each call; None where no guard can ask that."""
        return self.env.questions.ask(self.term, function, *arguments)

    @property
    def is_defined(self) -> bool:
        """Whether Python computes a float for all sizes that the guards let through (of what data decides: or the graph
        raises what Python raises)."""
        return self.is_unbacked or _is_defined(self.env, self.term.operator, self.term.operands)

    def is_constant(self) -> bool:
        return self.term.operator == "number"

    def whole(self, host: Callable[[float], int]) -> Polynomial:
        """math.floor, math.ceil, math.trunc or round of it: by integers, as a size of its own, or for this call."""
        env, ratio = self.env, self.term.ratio
        if ratio is not None and host is not round and env.known_nonnegative(ratio.below - 1):
            above, below = map(env.reduce, ratio[:2])
            if host is math.ceil:
                return -env.divide(-above, below)
            if host is math.floor or env.known_nonnegative(above):
                return env.divide(above, below)
        made = env.questions.whole(self.term, float.__round__ if host is round else host)
        return constant(host(self.number())) if made is None else made

    def compare(self, name: builtins.str, other: SizeFloat) -> TruthNode:
        """A comparison, by the name that it has in the module `operator`."""
        gap = self._gap(other)
        if gap is None:
            gap = self._gap_of_quotients(other)
        if gap is not None:
            of_sizes: TruthNode = getattr(SizeNode(self.env, gap), name)(SizeNode(self.env, constant(0)))
            return of_sizes
        asked: bool | None = None  # as a guard can do it
        if other.term.plain is not None:
            asked = self.ask(getattr(float, f"__{name}__"), other.term.plain)
        elif self.term.plain is not None:
            asked = other.ask(getattr(float, f"__{_MIRRORED[name]}__"), self.term.plain)
        return self.wrap_bool(getattr(operator, name)(self.number(), other.number()) if asked is None else asked)

    def can_compare(self, number: float) -> bool:
        """Whether a comparison with a number fixes nothing."""
        if self.term.has_floats and self.env.questions.can_ask(self.term):
            return True
        return self._gap(SizeFloat(self.env, Term("number", (number,)))) is not None

    def _gap(self, other: SizeFloat) -> Polynomial | None:
        """A polynomial with the sign of `self - other`."""
        left, right = self.term.ratio, other.term.ratio
        if left is None or right is None or not (left.is_exact or right.is_exact):
            return None
        is_positive = all(self.env.known_nonnegative(side.below - 1) for side in (left, right))
        return left.above * right.below - right.above * left.below if is_positive else None

    def _gap_of_quotients(self, other: SizeFloat) -> Polynomial | None:
        """The same of two quotients, each rounded once, which assumes that their parts are small.

        a / b and c / d differ by 1 / (b * d) or more, if at all: by more than both are rounded, where a * d and c * b
        are below 2**52.
        """
        left, right = self.term.ratio, other.term.ratio
        if left is None or right is None or {self.term.operator, other.term.operator} != {"truediv"}:
            return None
        products = left.above * right.below, right.above * left.below
        known = (*products, left.below - 1, right.below - 1)
        if any(map(self.env.is_unbacked, products)) or not all(map(self.env.known_nonnegative, known)):
            return None
        are_small = all(self.env.is_nonnegative(constant(_APART - 1) - product) for product in products)
        return products[0] - products[1] if are_small else None

    # What Python asks.

    def __hash__(self) -> int:
        return hash(self.term)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __float__(self) -> float:
        return self.number()

    def __format__(self, spec: builtins.str) -> builtins.str:
        return format(self.number(), spec)

    def __pos__(self) -> Any:
        return self

    def __neg__(self) -> Any:
        return make_float(self.env, "neg", self)

    def __divmod__(self, other: Any) -> Any:
        return NotImplemented if term_of(other) is None else (self // other, self % other)

    def __rdivmod__(self, other: Any) -> Any:
        return NotImplemented if term_of(other) is None else (other // self, other % self)

    def __abs__(self) -> Any:
        if self.term.has_floats or self.is_unbacked:
            return make_float(self.env, "abs", self)
        return self if self > 0 else -self if self < 0 else 0.0

    def __round__(self, ndigits: int | None = None) -> Any:
        if ndigits is None:
            return make_whole(self, round)
        rounded = self.ask(float.__round__, ndigits)
        return round(self.number(), ndigits) if rounded is None else rounded

    def is_integer(self) -> bool:
        asked: bool | None = self.ask(float.is_integer)
        return self.number().is_integer() if asked is None else asked

    # What C++ asks, beside the operators.

    def maybe_as_float(self) -> float | None:
        return self.term.operands[0] if self.is_constant() else None

    def guard_float(self, file: builtins.str, line: int) -> float:
        some = self.env.questions.some_number
        return self.number() if some is None or not self.is_unbacked else some

    def sym_float(self) -> SizeFloat:
        return self


def create_float(env: ShapeEnv, name: str, hint: float | None = None) -> SizeFloat:
    """A new float symbol that is worth `hint` now; without one, data decides it."""
    if hint is not None:
        env.hints[name] = hint
    return SizeFloat(env, Term("symbol", (name,)))


def term_of(value: Any) -> Term | None:
    """A size, an int, a float or a node of one as a step; None for what is no such number."""
    if isinstance(value, float):
        return Term("number", (float(value),))
    if isinstance(value, torch.SymFloat):
        return value.node.term if isinstance(value.node, SizeFloat) else None
    size = polynomial_of(value)
    return None if size is None else Term("size", (size,))


def as_float(number: Any) -> Any:
    """`float(number)`, of a size without fixing it."""
    if isinstance(number, torch.SymInt):
        return number.node.sym_float()
    return number if isinstance(number, torch.SymFloat) else float(number)


def make_whole(number: SizeFloat, host: Callable[[float], int]) -> Any:
    """`host(number)`: math.floor, math.ceil, math.trunc or round."""
    from absint.symbolic.size import make_size

    return make_size(number.env, number.whole(host))


def make_float(env: ShapeEnv, name: str, *operands: Any) -> Any:
    """`name` (one of `OPERATORS` or `FUNCTIONS`) of sizes and numbers: a `SizeFloat` where it is one for all sizes that
    the guards let through, else a plain float. NotImplemented where an operand is no such number. Raises what Python
    raises, at the sizes of now.
    """
    terms = tuple(map(term_of, operands))
    if None in terms:
        return NotImplemented
    made = SizeFloat(env, Term(name, terms))
    if made.is_unbacked:
        return env.questions.define(made)
    return made if made.is_defined else made.number()


# What the last operand has to be.
_DOMAINS: dict[str, tuple[str, float]] = {
    "truediv": ("ne", 0.0), "sqrt": ("ge", 0.0), "exp": ("le", 700.0), "expm1": ("le", 700.0),
    **dict.fromkeys(("log", "log2", "log10", "log1p"), ("gt", 0.0)),
}  # fmt: skip
_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _is_defined(env: ShapeEnv, name: str, parts: tuple[Term, ...]) -> bool:
    if name in _DOMAINS:
        return _holds(env, parts[-1], *_DOMAINS[name])
    return _is_tame(env, *parts) if name == "pow" else name in ("add", "sub", "mul", "neg", "abs")


def _holds(env: ShapeEnv, term: Term, name: str, number: float) -> bool:
    """Whether the comparison with a number holds, now and for all sizes that the guards let through."""
    if name in ("ne", "ge", "gt") and number == 0 and _is_positive(env, term):
        return True
    node = SizeFloat(env, term)
    return node.can_compare(number) and node.compare(name, _beside(node, number)).decide()


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


def _is_tame(env: ShapeEnv, base: Term, power: Term) -> bool:
    """Whether a power is a float: it is a small one of what is positive, and neither huge nor tiny."""
    if power.has_floats:
        is_small = _holds(env, power, "ge", -4.0) and _holds(env, power, "le", 4.0)
    else:
        is_small = power.plain is not None and abs(power.plain) <= 4
    if not is_small or not base.has_floats:
        return is_small and _is_positive(env, base)
    is_whole = power.plain is not None and power.plain >= 0 and power.plain.is_integer()
    return _holds(env, base, "ge", -1e70 if is_whole else 1e-70) and _holds(env, base, "le", 1e70)


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


def _computed(name: str) -> Callable[..., SizeFloat]:
    """What C++ calls: as in C++, dividing by zero gives an infinity or nan."""

    def method(self: SizeFloat, *others: Any) -> SizeFloat:
        made = SizeFloat(self.env, Term(name, (self.term, *map(term_of, others))))
        if made.is_defined:
            return made
        return self.wrap_float(_in_c(name, self.number(), *[_beside(self, other).number() for other in others]))

    return method


def _beside(number: SizeFloat, other: Any) -> SizeFloat:
    """What C++ or Python gives beside it, as such a float."""
    return SizeFloat(number.env, term_of(other))  # type: ignore[arg-type]


def _compared(name: str) -> Callable[[SizeFloat, Any], Any]:
    """A comparison of Python; NotImplemented beside what is no number."""

    def method(self: SizeFloat, other: Any) -> Any:
        return NotImplemented if term_of(other) is None else self.compare(name, _beside(self, other)).decide()

    return method


for _name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(SizeFloat, _name, _computed(_name))
for _name in ("float_truediv", "float_pow"):
    setattr(SizeFloat, _name, getattr(SizeFloat, _name.removeprefix("float_")))
for _name, _host in (("sym_min", min), ("sym_max", max)):
    setattr(SizeFloat, _name, lambda self, other, host=_host: self.wrap_float(
        host(self.number(), _beside(self, other).number())
    ))  # fmt: skip
for _name, _host in (("floor", math.floor), ("ceil", math.ceil), ("trunc", math.trunc)):
    setattr(SizeFloat, f"__{_name}__", lambda self, host=_host: make_whole(self, host))
for _name in _MIRRORED:
    setattr(SizeFloat, _name, lambda self, other, name=_name: self.compare(name, _beside(self, other)))
    setattr(SizeFloat, f"__{_name}__", _compared(_name))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(SizeFloat, f"__{_name}__", lambda self, other, name=_name: make_float(self.env, name, self, other))
    setattr(SizeFloat, f"__r{_name}__", lambda self, other, name=_name: make_float(self.env, name, other, self))
