"""Integer polynomials over symbols: the one arithmetic of sizes, their guards and the code that computes them.

    polynomial ::= (monomial -> coefficient)*        canonical, so that equal values of one form are equal objects
    monomial   ::= (atom, exponent)*
    atom       ::= symbol | polynomial // polynomial | polynomial % polynomial
                 | Min(polynomial, ...) | Max(polynomial, ...)

Sums and products are exact; each other operation has one rule (`RULES`), which takes out what is known without the
values of symbols, and leaves the rest as an atom. The same operands come again and again, in a program and in the next
(symbols are called s0, s1 everywhere): results are cached, and what is computed of them is the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from math import gcd
from typing import Any, TypeVar

from stagewire.errors import ExprError

MOST_TERMS = 256
MOST_POWER = 64
MOST_BITS = 1024
MOST_CHARACTERS = 16384
_MOST_TERMS_OF_A_POWER = 64
_MOST_SIDES = 64
"""Bounds of terms, of the power of a symbol in one, of coefficients, and so on. No size comes near them; what a
document says would else take hours or all memory to compute."""

_F = TypeVar("_F", bound=Callable[..., Any])


def cached(function: _F) -> _F:
    """`function`, whose last results are kept."""
    return lru_cache(maxsize=1 << 14)(function)  # type: ignore[return-value]


class Atom(str):
    """A symbol (no operands), or an operation that no polynomial expresses; the string is its canonical text."""

    __slots__ = ("operands", "operator")
    operator: str
    operands: tuple[Polynomial, ...]

    def __new__(cls, operator: str, operands: tuple[Polynomial, ...], text: str) -> Atom:
        if len(text) > MOST_CHARACTERS:
            raise ExprError(f"a size of {len(text)} characters; {MOST_CHARACTERS} is the most")
        atom = super().__new__(cls, text)
        atom.operator = operator
        atom.operands = operands
        return atom


Monomial = tuple[tuple[Atom, int], ...]


class Polynomial(frozenset[tuple[Monomial, int]]):
    """A sum of monomials with integer coefficients, none of them 0; frozen.

    As the set of its terms it is hashed and compared without Python.

    >>> n = symbol("n")
    >>> (n + 1) * (n - 1), (n + 1) * 2 == n * 2 + 2
    (n**2 - 1, True)
    >>> (n * 5 + 3) // 4, n * 9 % 4, smallest(n + 1, n)
    ((n + 3)//(4) + n, (n)%(4), n)
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

    # -- arithmetic

    @cached
    def __add__(self, other: Polynomial | int) -> Polynomial:
        return _sum(self.terms, _terms(other), 1)

    @cached
    def __sub__(self, other: Polynomial | int) -> Polynomial:  # type: ignore[override]
        return _sum(self.terms, _terms(other), -1)

    @cached
    def __neg__(self) -> Polynomial:
        return Polynomial({key: -count for key, count in self.terms.items()})

    @cached
    def __mul__(self, other: Polynomial | int) -> Polynomial:
        left, right = self.terms, _terms(other)
        if len(left) * len(right) > MOST_TERMS**2 // 4:
            raise ExprError(f"a product of sizes of {len(left)} and {len(right)} terms")
        found: dict[Monomial, int] = {}
        for key, count in left.items():
            for other_key, other_count in right.items():
                product = _product(key, other_key)
                found[product] = found.get(product, 0) + count * other_count
        return _within_bounds({key: count for key, count in found.items() if count})

    def __pow__(self, exponent: int) -> Polynomial:
        if not 0 <= exponent <= MOST_POWER:
            raise ExprError(f"the power {exponent} is no size's; {MOST_POWER} is the largest")
        if len(self.terms) > 1 and len(self.terms) * exponent > _MOST_TERMS_OF_A_POWER:
            raise ExprError("a power with too many terms")
        made = ONE
        for _ in range(exponent):
            made = made * self
        return made

    @cached
    def __floordiv__(self, other: Polynomial | int) -> Polynomial:
        """Python's: rounded to minus infinity; raises ZeroDivisionError for 0. Multiples of `other` are taken out."""
        right = constant(other) if isinstance(other, int) else other
        divisor = right.number
        if divisor == 0:
            raise ZeroDivisionError("integer division or modulo by zero")
        whole, rest = _without_multiples(self, right)
        if not rest:
            return whole
        if rest.number is not None and divisor is not None:
            return whole + rest.number // divisor
        if divisor is not None and divisor < 0:
            rest, right = -rest, -right
        common = gcd(*rest.terms.values(), *right.terms.values())
        rest, right = rest.over(common), right.over(common)
        if right.number == 1:
            return whole + rest
        return whole + _operation("//", (rest, right), f"({rest.text})//({right.text})")

    @cached
    def __mod__(self, other: Polynomial | int) -> Polynomial:
        """Python's: the sign is that of `other`; raises ZeroDivisionError for 0."""
        divisor = other if isinstance(other, int) else other.number
        if divisor is None or divisor <= 0:
            return self - self // other * other
        rest = _without_multiples(self, constant(divisor))[1]
        if rest.number is not None:
            return constant(rest.number % divisor)
        common = gcd(*rest.terms.values(), divisor)
        rest, divisor = rest.over(common), divisor // common
        return _operation("%", (rest, constant(divisor)), f"({rest.text})%({divisor})") * common

    @cached
    def divide(self, other: Polynomial) -> tuple[Polynomial, Polynomial] | None:
        """(quotient, rest) of self = quotient * other + rest, the rest being the terms that no multiple of `other`
        takes away; None for 0. By one term at a time, in lexical order: exact wherever `other` divides.

        >>> n, m = symbol("n"), symbol("m")
        >>> (n * m + m * 2 + 5).divide(m)
        (n + 2, 5)
        """
        if not other:
            return None
        names = tuple(sorted({*self.atoms(), *other.atoms()}))
        lead = max(other.terms, key=lambda key: _powers(key, names))
        quotient, left, rest = ZERO, self, dict[Monomial, int]()
        while left:
            first = max(left.terms, key=lambda key: _powers(key, names))
            count = left.terms[first]
            factor = _quotient(first, lead)
            if factor is None or count % other.terms[lead]:
                rest[first] = count
                left = left - Polynomial({first: count})
                continue
            part = Polynomial({factor: count // other.terms[lead]})
            quotient = quotient + part
            left = left - part * other
        return quotient, Polynomial(rest)

    def over(self, divisor: int) -> Polynomial:
        """With coefficients divided by a number that divides them all."""
        return self if divisor == 1 else Polynomial({key: count // divisor for key, count in self.terms.items()})

    # -- what it depends on

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
        """Its value where the symbols have `values`. Raises KeyError, ZeroDivisionError."""
        total = 0
        for key, count in self.terms.items():
            for atom, power in key:
                if not atom.operands:
                    value = values[atom]
                else:
                    value = _MEANING[atom.operator](*[operand.evaluate(values) for operand in atom.operands])
                if power > 1 and value.bit_length() * power > MOST_BITS:
                    raise ExprError(f"{self.text[:200]!r} has a power that is no size")
                count *= value**power
            total += count
        return total

    def substitute(self, meanings: Mapping[str, Polynomial], rules: Rules | None = None) -> Polynomial:
        """With symbols replaced by polynomials, and what is computed of them by the rules (`RULES`, or others)."""
        if rules is None and self.symbols.isdisjoint(meanings):
            return self
        total = ZERO
        for key, count in self.terms.items():
            part = constant(count)
            for atom, power in key:
                if atom.operands:
                    operands = [operand.substitute(meanings, rules) for operand in atom.operands]
                    meaning = (rules or RULES)[atom.operator](*operands)
                else:
                    meaning = meanings[atom] if atom in meanings else Polynomial({((atom, 1),): 1})
                part = part * meaning**power
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

    # -- text and code

    @cached_property
    def _ordered(self) -> tuple[Monomial, ...]:
        """The monomials as they are printed: of symbols alone in lexical order of their powers, else by degree."""
        if any(atom.operands for atom in self.atoms()):
            return tuple(sorted(self.terms, key=lambda key: (-sum(power for _, power in key), key)))
        if len(self.terms) == 2 and self.offset > 0:  # "5 - n", though "-n + 5" for a product
            (other,) = (key for key in self.terms if key)
            if self.terms[other] < 0 and len(other) == 1:
                return (), other
        names = tuple(sorted(set(self.atoms())))
        return tuple(sorted(self.terms, key=lambda key: _powers(key, names), reverse=True))

    @cached_property
    def text(self) -> str:
        """The canonical text, in the grammar of `stagewire.expr`."""
        text = ""
        for key in self._ordered:
            count = self.terms[key]
            sign = (" - " if count < 0 else " + ") if text else "-" if count < 0 else ""
            text += sign + _term(key, abs(count), alone=not sign)
        return text or "0"

    def __repr__(self) -> str:
        return self.text

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """How it is computed, as a postfix program: numbers, symbols, and operators of two operands.

        >>> (symbol("n") * 2 - 1).steps
        (('number', 2), ('symbol', 'n'), ('*', ''), ('number', 1), ('-', ''))
        """
        made: list[Step] = []
        for key in self._ordered:
            count = self.terms[key]
            if made:
                count, operator = abs(count), "-" if count < 0 else "+"
            else:
                operator = ""
            factors = [list(_steps_of(atom)) for atom, power in key for _ in range(power)]
            if count != 1 or not factors:
                factors.insert(0, [("number", count)])
            for number, factor in enumerate(factors):
                made += factor + [("*", "")] * (number > 0)
            made += [(operator, "")] * bool(operator)
        return tuple(made) or (("number", 0),)


Step = tuple[str, str | int]
Rules = Mapping[str, Callable[..., Polynomial]]


def _steps_of(atom: Atom) -> Iterable[Step]:
    if not atom.operands:
        yield "symbol", str(atom)
    for number, operand in enumerate(atom.operands):
        yield from operand.steps
        if number:
            yield atom.operator, ""


def _terms(value: Polynomial | int) -> Mapping[Monomial, int]:
    return value.terms if isinstance(value, Polynomial) else {(): value} if value else {}


def _sum(left: Mapping[Monomial, int], right: Mapping[Monomial, int], factor: int) -> Polynomial:
    found = dict(left)
    for key, count in right.items():
        total = found.get(key, 0) + factor * count
        if total:
            found[key] = total
        else:
            found.pop(key, None)
    return _within_bounds(found) if len(found) > MOST_TERMS else Polynomial(found)


def _within_bounds(terms: dict[Monomial, int]) -> Polynomial:
    if len(terms) > MOST_TERMS:
        raise ExprError(f"a size of {len(terms)} terms; {MOST_TERMS} is the most")
    if any(count.bit_length() > MOST_BITS for count in terms.values()):
        raise ExprError(f"a size with a number of more than {MOST_BITS} bits")
    return Polynomial(terms)


def _product(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    powers = dict(left)
    for atom, power in right:
        powers[atom] = total = powers.get(atom, 0) + power
        if total > MOST_POWER:
            raise ExprError(f"the power {total} of {atom[:20]} is no size's; {MOST_POWER} is the largest")
    return tuple(sorted(powers.items()))


def _quotient(left: Monomial, right: Monomial) -> Monomial | None:
    """The monomial left / right; None where that is none."""
    powers = dict(left)
    for atom, power in right:
        rest = powers.get(atom, 0) - power
        if rest < 0:
            return None
        powers[atom] = rest
    return tuple(sorted((atom, power) for atom, power in powers.items() if power))


def _powers(key: Monomial, names: tuple[Atom, ...]) -> tuple[int, ...]:
    powers = dict(key)
    return tuple([powers.get(name, 0) for name in names])


def _term(key: Monomial, count: int, *, alone: bool) -> str:
    if alone and count == 1 and len(key) == 1 and key[0][1] == 1:
        return key[0][0]
    factors = [str(count)] if count != 1 or not key else []
    for atom, power in key:
        base = f"({atom})" if atom.operands else atom
        factors.append(base if power == 1 else f"{base}**{power}")
    return "*".join(factors)


def _without_multiples(left: Polynomial, right: Polynomial) -> tuple[Polynomial, Polynomial]:
    """(q, r) with left = q * right + r; for a number `right` the coefficients of r lie below it."""
    if len(right.terms) > 1:
        found = left.divide(right)
        return (ZERO, left) if found is None or found[1] else found
    ((divisor, count),) = right.terms.items()
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for key, number in left.terms.items():
        quotient = _quotient(key, divisor)
        if quotient is None or (divisor and number % count):
            rest[key] = number
            continue
        if number // count:
            whole[quotient] = number // count
        if number % count:  # 5*n = 4*n + n
            rest[key] = number % count
    return Polynomial(whole), Polynomial(rest)


def _operation(operator: str, operands: tuple[Polynomial, ...], text: str) -> Polynomial:
    return Polynomial({((Atom(operator, operands, text), 1),): 1})


@cached
def constant(number: int) -> Polynomial:
    """The polynomial that is a number."""
    return _within_bounds({(): int(number)} if number else {})


ZERO, ONE = Polynomial({}), Polynomial({(): 1})


@cached
def symbol(name: str) -> Polynomial:
    """The polynomial that is a symbol."""
    return _operation("symbol", (), name)


@cached
def smallest(*sides: Polynomial) -> Polynomial:
    """Min(...), without sides that are another and a number more."""
    return _choice("Min", sides)


@cached
def largest(*sides: Polynomial) -> Polynomial:
    """Max(...), without sides that are another and a number less."""
    return _choice("Max", sides)


def _choice(name: str, sides: Iterable[Polynomial]) -> Polynomial:
    chosen: list[Polynomial] = []
    for side in (inner for given in sides for inner in _sides_of(name, given)):
        if len(chosen) > _MOST_SIDES:
            raise ExprError(f"{name} of more than {_MOST_SIDES} sizes")
        gaps = [(side - other).number for other in chosen]
        if any(gap is not None and (gap >= 0) is (name == "Min" or gap == 0) for gap in gaps):
            continue  # what is there is as good
        chosen = [other for other, gap in zip(chosen, gaps, strict=True) if gap is None]
        chosen.append(side)
    if len(chosen) == 1:
        return chosen[0]
    chosen.sort(key=lambda side: side.text)
    return _operation(name, tuple(chosen), f"{name}({', '.join([side.text for side in chosen])})")


def _sides_of(name: str, value: Polynomial) -> tuple[Polynomial, ...]:
    """Of Min(a, b) inside of a Min its own sides."""
    match tuple(value.terms.items()):
        case [(((atom, 1),), 1)] if atom.operator == name:
            return atom.operands
    return (value,)


RULES: Rules = {
    "+": Polynomial.__add__,
    "-": Polynomial.__sub__,
    "*": Polynomial.__mul__,
    "//": Polynomial.__floordiv__,
    "%": Polynomial.__mod__,
    "Min": smallest,
    "Max": largest,
}
_MEANING: dict[str, Callable[..., int]] = {"//": int.__floordiv__, "%": int.__mod__, "Min": min, "Max": max}
