"""Polynomials in size symbols with integer coefficients: the arithmetic of most sizes.

A polynomial is a mapping from monomials to coefficients, none of them 0; a monomial is the sorted (symbol, power) pairs
of its factors, () being that of the constant. `text_of` prints what `stagewire.expr` takes for canonical: terms in
lexical order of their powers, highest first.

>>> text_of(multiply(parse("2*n + 1"), parse("m*n - 3")))
'2*m*n**2 + m*n - 6*n - 3'
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from stagewire.errors import ExprError

Monomial = tuple[tuple[str, int], ...]
Polynomial = Mapping[Monomial, int]

ONE: Monomial = ()

MOST_TERMS = 256
MOST_POWER = 64
MOST_BITS = 1024
"""Bounds of terms, of the power of a symbol in one, and of coefficients. No size comes near them; what a document says
would else take hours or all memory to compute."""


@lru_cache(maxsize=16384)
def parse(text: str) -> Polynomial | None:
    """The polynomial of canonical text; None where it has other operations in it."""
    if "(" in text or "/" in text or "%" in text:
        return None
    found: dict[Monomial, int] = {}
    for sign, term in _signed_terms(text):
        coefficient, monomial = _parse_term(term)
        found[monomial] = found.get(monomial, 0) + sign * coefficient
    return within_bounds({monomial: c for monomial, c in found.items() if c})


def _signed_terms(text: str) -> list[tuple[int, str]]:
    parts = text.replace(" - ", " + -").split(" + ")
    return [(-1, part[1:]) if part.startswith("-") else (1, part) for part in parts]


def _parse_term(term: str) -> tuple[int, Monomial]:
    coefficient = 1
    powers: dict[str, int] = {}
    for factor in term.replace("**", "^").split("*"):
        name, _, power = factor.partition("^")
        if max(len(name), len(power)) > MOST_BITS:
            raise ExprError(f"a number or a name of {max(len(name), len(power))} characters in a size")
        if name.isdecimal():
            coefficient *= int(name) ** power_of(power)
        else:
            powers[name] = powers.get(name, 0) + power_of(power)
    return coefficient, tuple(sorted(powers.items()))


def power_of(text: str) -> int:
    """The power that is written so ("" is 1). Raises `ExprError` for one that is out of bounds."""
    power = int(text or 1)
    if not 0 <= power <= MOST_POWER:
        raise ExprError(f"the power {text[:20]} in a size; {MOST_POWER} is the largest")
    return power


def within_bounds(value: dict[Monomial, int]) -> Polynomial:
    """The polynomial. Raises `ExprError` where it has more terms, or larger coefficients, than sizes have."""
    if len(value) > MOST_TERMS:
        raise ExprError(f"a size of {len(value)} terms; {MOST_TERMS} is the most")
    if any(coefficient.bit_length() > MOST_BITS for coefficient in value.values()):
        raise ExprError(f"a size with a number of more than {MOST_BITS} bits")
    return value


def of_integer(number: int) -> Polynomial:
    """A constant."""
    return {ONE: number} if number else {}


def add(a: Polynomial, b: Polynomial, factor: int = 1) -> Polynomial:
    """a + factor * b."""
    found = dict(a)
    for monomial, coefficient in b.items():
        total = found.get(monomial, 0) + factor * coefficient
        if total:
            found[monomial] = total
        else:
            found.pop(monomial, None)
    return found if len(found) <= MOST_TERMS else within_bounds(found)


def multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    """a * b."""
    if len(a) * len(b) > MOST_TERMS**2 // 4:
        raise ExprError(f"a product of sizes of {len(a)} and {len(b)} terms")
    found: dict[Monomial, int] = {}
    for left, c in a.items():
        for right, d in b.items():
            key = product(left, right)
            found[key] = found.get(key, 0) + c * d
    return within_bounds({monomial: c for monomial, c in found.items() if c})


def product(a: Monomial, b: Monomial) -> Monomial:
    """The monomial a * b."""
    if not a or not b:
        return a or b
    powers = dict(a)
    for name, power in b:
        powers[name] = total = powers.get(name, 0) + power
        if total > MOST_POWER:
            raise ExprError(f"the power {total} of {name[:20]} in a size; {MOST_POWER} is the largest")
    return tuple(sorted(powers.items()))


def divide(a: Polynomial, b: Polynomial) -> tuple[Polynomial, Polynomial] | None:
    """(quotient, rest) of a = quotient * b + rest, the rest being the terms of `a` that no multiple of `b` takes away;
    None for b = 0. By one term at a time, in lexical order: exact wherever `b` divides `a`.

    >>> quotient, rest = divide(parse("n*m + 2*m + 5"), parse("m"))
    >>> text_of(quotient), text_of(rest)
    ('n + 2', '5')
    """
    if not b:
        return None
    names = tuple(sorted({name for one in (*a, *b) for name, _ in one}))
    lead = max(b, key=lambda one: _powers(one, names))
    quotient: Polynomial = {}
    left: Polynomial = dict(a)
    rest: dict[Monomial, int] = {}
    while left:
        first = max(left, key=lambda one: _powers(one, names))
        coefficient = left[first]
        factor = quotient_of(first, lead)
        if factor is None or coefficient % b[lead]:
            rest[first] = coefficient
            left = add(left, {first: coefficient}, -1)
            continue
        part = {factor: coefficient // b[lead]}
        quotient = add(quotient, part)
        left = add(left, multiply(part, b), -1)
    return quotient, rest


def quotient_of(a: Monomial, b: Monomial) -> Monomial | None:
    """The monomial a / b; None where `b` does not divide `a`."""
    powers = dict(a)
    for name, power in b:
        left = powers.get(name, 0) - power
        if left < 0:
            return None
        powers[name] = left
    return tuple(sorted((name, power) for name, power in powers.items() if power))


def _powers(monomial: Monomial, names: tuple[str, ...]) -> tuple[int, ...]:
    powers = dict(monomial)
    return tuple([powers.get(name, 0) for name in names])


def text_of(a: Polynomial) -> str:
    """Canonical text."""
    if not a:
        return "0"
    constant = a.get(ONE, 0)
    if len(a) == 2 and constant > 0:  # "5 - n", though "-n + 5" for a product
        other = next(one for one in a if one)
        if a[other] < 0 and len(other) == 1:
            return f"{constant} - {_term(other, -a[other])}"
    names = tuple(sorted({name for one in a for name, _ in one}))
    terms = sorted(a, key=lambda one: _powers(one, names), reverse=True)
    text = ("-" if a[terms[0]] < 0 else "") + _term(terms[0], abs(a[terms[0]]))
    return text + "".join(f" {'-' if a[one] < 0 else '+'} {_term(one, abs(a[one]))}" for one in terms[1:])


def _term(monomial: Monomial, coefficient: int) -> str:
    factors = [name if power == 1 else f"{name}**{power}" for name, power in monomial]
    return "*".join(([str(coefficient)] if coefficient != 1 or not factors else []) + factors)


def least(a: Polynomial, lower: Mapping[str, int]) -> int | None:
    """A number that the polynomial is never below where each symbol is at least what `lower` says (a number >= 0);
    None where that is not seen.

    >>> least(parse("n*m - n - m + 1"), {"n": 1, "m": 2})
    0
    """
    shifted: Polynomial = {}
    for monomial, coefficient in a.items():
        term: Polynomial = {ONE: coefficient}
        for name, power in monomial:
            if name not in lower:
                return None
            for _ in range(power):
                term = multiply(term, add({((name, 1),): 1}, of_integer(lower[name])))
        shifted = add(shifted, term)
    if any(coefficient < 0 for monomial, coefficient in shifted.items() if monomial):
        return None
    return shifted.get(ONE, 0)
