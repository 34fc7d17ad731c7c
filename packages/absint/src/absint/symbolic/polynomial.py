"""Integer polynomials over size symbols: the arithmetic of symbolic sizes.

    polynomial ::= (monomial -> coefficient)*        canonical, so that equal values of one form are equal objects
    monomial   ::= (atom, exponent)*
    atom       ::= symbol | polynomial // polynomial | Min(polynomial, polynomial) | Max(polynomial, polynomial)

`a % b` is `a - b * (a // b)`. Sums and products are `stagewire.polynomial`'s, over atoms in the place of names; they
cost some microseconds each. A capture asks for the same ones again and again, and so does the next one (symbols are
called s0, s1 everywhere): results are kept, and what is computed of the same operands is the same object. The border of
the documents is `stagewire.expr`, with a canonical form of its own (remainders stay remainders there).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from math import gcd
from typing import Any, TypeVar

from stagewire import polynomial
from stagewire.errors import ExprError
from stagewire.expr import Dim, dim_of, parse_expr

__all__ = [
    "ONE", "ZERO", "Atom", "Polynomial", "constant", "divide", "from_dim", "kept", "largest", "power", "remainder",
    "smallest", "symbol",
]  # fmt: skip


_F = TypeVar("_F", bound=Callable[..., Any])


def kept(function: _F) -> _F:
    """`function`, whose last results are kept."""
    return lru_cache(maxsize=1 << 14)(function)  # type: ignore[return-value]


class Atom(str):
    """A symbol (no operands), or an operation that no polynomial expresses; the string is how it reads."""

    __slots__ = ("operands", "operator")
    operator: str
    operands: tuple[Polynomial, ...]

    def __new__(cls, operator: str, operands: tuple[Polynomial, ...], text: str) -> Atom:
        atom = super().__new__(cls, text)
        atom.operator = operator
        atom.operands = operands
        return atom


Monomial = tuple[tuple[Atom, int], ...]


class Polynomial(frozenset[tuple[Monomial, int]]):
    """A sum of monomials with integer coefficients, none of them 0; frozen.

    As the set of its terms it is hashed and compared without Python.

    >>> n = symbol("n")
    >>> (n + 1) * (n - 1)
    n**2 - 1
    >>> (n + 1) * 2 == n * 2 + 2
    True
    """

    terms: Mapping[Monomial, int]

    def __new__(cls, terms: Mapping[Monomial, int]) -> Polynomial:
        made = super().__new__(cls, terms.items())
        made.terms = terms
        return made

    @cached_property
    def number(self) -> int | None:
        """The value of a constant polynomial, else None."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @cached_property
    def is_linear(self) -> bool:
        """Whether it is a sum of multiples of atoms."""
        return all(not key or (len(key) == 1 and key[0][1] == 1) for key in self.terms)

    @property
    def offset(self) -> int:
        """The term without symbols."""
        return self.terms.get((), 0)

    @kept
    def __add__(self, other: Polynomial | int) -> Polynomial:
        return Polynomial(polynomial.add(self.terms, _terms(other)))

    @kept
    def __neg__(self) -> Polynomial:
        return Polynomial({key: -count for key, count in self.terms.items()})

    @kept
    def __sub__(self, other: Polynomial | int) -> Polynomial:  # type: ignore[override]
        return Polynomial(polynomial.add(self.terms, _terms(other), -1))

    @kept
    def __mul__(self, other: Polynomial | int) -> Polynomial:
        return Polynomial(polynomial.multiply(self.terms, _terms(other)))

    def atoms(self) -> Iterator[Atom]:
        """The atoms of its monomials (not those inside of atoms)."""
        for key in self.terms:
            for atom, _ in key:
                yield atom

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names of all symbols in it."""
        found: set[str] = set()
        for atom in self.atoms():
            found |= {str(atom)} if not atom.operands else {name for part in atom.operands for name in part.symbols}
        return frozenset(found)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Its value where the symbols have `values`."""
        total = 0
        for key, count in self.terms.items():
            for atom, power in key:
                count *= _value_of(atom, values) ** power
            total += count
        return total

    def substitute(self, meanings: Mapping[str, Polynomial]) -> Polynomial:
        """With symbols replaced by polynomials."""
        if self.symbols.isdisjoint(meanings):
            return self
        total = ZERO
        for key, count in self.terms.items():
            part = constant(count)
            for atom, power in key:
                meaning = _substituted(atom, meanings)
                for _ in range(power):
                    part = part * meaning
            total = total + part
        return total

    def rewritten(self, rules: Mapping[Atom, tuple[int, Polynomial]]) -> Polynomial:
        """With count * atom replaced by what it is, where it is a factor of terms; not inside of atoms."""
        for key, number in self.terms.items():
            for place, (atom, times) in enumerate(key):
                count, meaning = rules.get(atom, (0, ZERO))
                if count and number % count == 0:
                    left = (*key[:place], *(((atom, times - 1),) if times > 1 else ()), *key[place + 1 :])
                    made = self - Polynomial({key: number}) + meaning * Polynomial({left: number // count})
                    return made.rewritten(rules)
        return self

    @cached_property
    def text(self) -> str:
        """The expression in the grammar of `stagewire.expr`, with the highest monomials first."""
        if not self.terms:
            return "0"
        keys = sorted(self.terms, key=_degree_then_name)
        return "".join(_print_term(key, self.terms[key], first=index == 0) for index, key in enumerate(keys))

    def __repr__(self) -> str:
        return self.text

    @cached_property
    def dim(self) -> Dim:
        """The size as documents write it."""
        return _dim(self)


def _terms(value: Polynomial | int) -> Mapping[Monomial, int]:
    return {(): value} if isinstance(value, int) else value.terms


def _degree_then_name(key: Monomial) -> tuple[int, str]:
    return -sum(power for _, power in key), " ".join(str(atom) for atom, _ in key)


def _print_term(key: Monomial, count: int, *, first: bool) -> str:
    factors = [_print_power(atom, power) for atom, power in key]
    body = "*".join([str(abs(count))] * (abs(count) != 1 or not factors) + factors)
    if first:
        return f"-{body}" if count < 0 else body
    return f" - {body}" if count < 0 else f" + {body}"


def _print_power(atom: Atom, power: int) -> str:
    base = str(atom) if not atom.operands or atom.operator in ("Min", "Max") else f"({atom!s})"
    return base if power == 1 else f"{base}**{power}"


@kept
def _dim(value: Polynomial) -> Dim:
    return parse_expr(value.text) if any(atom.operands for atom in value.atoms()) else dim_of(value.terms)


@kept
def constant(number: int) -> Polynomial:
    """The polynomial that is a number."""
    return Polynomial({(): int(number)} if number else {})


ZERO, ONE = Polynomial({}), Polynomial({(): 1})


@kept
def symbol(name: str) -> Polynomial:
    """The polynomial that is a symbol."""
    return Polynomial({((Atom("symbol", (), name), 1),): 1})


@kept
def divide(left: Polynomial, right: Polynomial) -> Polynomial:
    """`left // right`, rounded to minus infinity; raises ZeroDivisionError where `right` is 0.

    >>> n, m = symbol("n"), symbol("m")
    >>> divide(n * m * 8, n * 4), divide(n * 4 + 3, constant(4)), divide(n + 1, constant(2))
    (2*m, n, ((n + 1)//(2)))
    """
    if right.number == 0:
        raise ZeroDivisionError("integer division or modulo by zero")
    if left.number is not None and right.number is not None:
        return constant(left.number // right.number)
    whole, rest = _split_multiple(left, right)
    if rest == ZERO:
        return whole
    if rest.number is not None and right.number is not None:
        return whole + rest.number // right.number
    rest, right = _reduced(rest, right)
    if right.number == 1:
        return whole + rest
    return whole + _atom("//", (rest, right), f"({rest.text})//({right.text})")


def _reduced(left: Polynomial, right: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Both without a common factor of their coefficients: (a*c)//(b*c) is a//b for c > 0."""
    common = gcd(*left.terms.values(), *right.terms.values())
    if right.number is not None and right.number < 0:
        left, right = -left, -right
    if common <= 1:
        return left, right
    return tuple(  # type: ignore[return-value]
        Polynomial({key: count // common for key, count in side.terms.items()}) for side in (left, right)
    )


def _split_multiple(left: Polynomial, right: Polynomial) -> tuple[Polynomial, Polynomial]:
    """(q, r) with left = q * right + r, where q takes the terms that are multiples of `right`."""
    if len(right.terms) == 1:
        ((divisor, count),) = right.terms.items()
        whole: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for key, number in left.terms.items():
            quotient = polynomial.quotient_of(key, divisor)
            if quotient is None:
                rest[key] = number
            elif number % count == 0:
                whole[quotient] = number // count
            elif not divisor:
                # 5*n = 4*n + n: what is left has coefficients below the divisor.
                rest[key] = number % count
                if number // count:
                    whole[quotient] = number // count
            else:
                rest[key] = number
        return Polynomial(whole), Polynomial(rest)
    found = polynomial.divide(left.terms, right.terms)
    return (ZERO, left) if found is None or found[1] else (Polynomial(found[0]), ZERO)  # kept where nothing remains


def _atom(operator: str, operands: tuple[Polynomial, ...], text: str) -> Polynomial:
    return Polynomial({((Atom(operator, operands, text), 1),): 1})


@kept
def smallest(left: Polynomial, right: Polynomial) -> Polynomial:
    """Min(left, right)."""
    return _choice("Min", min, left, right)


@kept
def largest(left: Polynomial, right: Polynomial) -> Polynomial:
    """Max(left, right)."""
    return _choice("Max", max, left, right)


def _choice(name: str, host: Callable[[int, int], int], left: Polynomial, right: Polynomial) -> Polynomial:
    gap = (left - right).number
    if gap is not None:
        return left if host(gap, 0) == gap else right
    first, second = sorted((left, right), key=lambda side: side.text)
    return _atom(name, (first, second), f"{name}({first.text}, {second.text})")


def _value_of(atom: Atom, values: Mapping[str, int]) -> int:
    if not atom.operands:
        return values[str(atom)]
    left, right = (operand.evaluate(values) for operand in atom.operands)
    return {"//": int.__floordiv__, "Min": min, "Max": max}[atom.operator](left, right)


_MAKERS = {"//": divide, "Min": smallest, "Max": largest}


def _substituted(atom: Atom, meanings: Mapping[str, Polynomial]) -> Polynomial:
    if not atom.operands:
        return meanings[str(atom)] if str(atom) in meanings else symbol(str(atom))
    left, right = (operand.substitute(meanings) for operand in atom.operands)
    return _MAKERS[atom.operator](left, right)


def from_dim(dim: Dim) -> Polynomial:
    """The polynomial of a document's size."""
    return constant(dim) if isinstance(dim, int) else _from_text(dim.text)


@kept
def _from_text(text: str) -> Polynomial:
    return _read(ast.parse(text, mode="eval").body, text)


def _read(node: ast.expr, text: str) -> Polynomial:
    match node:
        case ast.Constant(value=int() as number):
            return constant(number)
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_read(operand, text)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as exponent)):
            return power(_read(left, text), exponent)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](_read(left, text), _read(right, text))
        case ast.Call(func=ast.Name(id="Min" | "Max" as name), args=[first, *rest]):
            made = _read(first, text)
            for part in rest:
                made = _MAKERS[name](made, _read(part, text))
            return made
    raise ExprError(f"{ast.unparse(node)!r} in {text!r} is outside the grammar of sizes")


def power(base: Polynomial, exponent: int) -> Polynomial:
    """`base ** exponent` for an exponent that is not negative."""
    made = ONE
    for _ in range(exponent):
        made = made * base
    return made


def remainder(left: Polynomial, right: Polynomial) -> Polynomial:
    """`left % right`, with the sign of `right`."""
    return left - right * divide(left, right)


_ARITHMETIC: dict[type[ast.operator], Callable[[Polynomial, Polynomial], Polynomial]] = {
    ast.Add: Polynomial.__add__,
    ast.Sub: Polynomial.__sub__,
    ast.Mult: Polynomial.__mul__,
    ast.FloorDiv: divide,
    ast.Mod: remainder,
}
