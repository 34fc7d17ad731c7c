"""Polynomials against numbers, and against sympy, whose text they must give."""

from __future__ import annotations

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from stagewire import polynomial
from stagewire.expr import Expr, dim_of, evaluate, polynomial_of
from stagewire.polynomial import Polynomial

NAMES = ("n", "s0", "s10", "s2", "u0")
MONOMIALS = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3), max_size=3).map(
    lambda m: tuple(sorted(m.items()))
)
POLYNOMIALS = st.dictionaries(MONOMIALS, st.integers(-9, 9).filter(bool), max_size=4)
VALUES = st.fixed_dictionaries({name: st.integers(1, 9) for name in NAMES})


def at(a: Polynomial, values: dict[str, int]) -> int:
    return evaluate(dim_of(a), values)


@settings(max_examples=200, deadline=None)
@given(POLYNOMIALS)
def test_text_is_sympys_and_parses_back(a: Polynomial) -> None:
    text = polynomial.text_of(a)
    assert polynomial.parse(text) == a
    value = sympy.expand(eval(text, {name: sympy.Symbol(name, integer=True) for name in NAMES}))
    assert str(value) == text


@settings(max_examples=200, deadline=None)
@given(POLYNOMIALS, POLYNOMIALS, VALUES)
def test_arithmetic_is_that_of_numbers(a: Polynomial, b: Polynomial, values: dict[str, int]) -> None:
    x, y = at(a, values), at(b, values)
    assert at(polynomial.add(a, b), values) == x + y
    assert at(polynomial.add(a, b, -1), values) == x - y
    assert at(polynomial.multiply(a, b), values) == x * y
    if b:
        found = polynomial.divide(a, b)
        assert found is not None
        assert at(found[0], values) * y + at(found[1], values) == x


@settings(max_examples=100, deadline=None)
@given(POLYNOMIALS, POLYNOMIALS.filter(bool))
def test_what_divides_is_taken_out_whole(a: Polynomial, b: Polynomial) -> None:
    assert polynomial.divide(polynomial.multiply(a, b), b) == (a, {})


@settings(max_examples=200, deadline=None)
@given(POLYNOMIALS, st.fixed_dictionaries({name: st.integers(0, 3) for name in NAMES}), VALUES)
def test_least_is_a_lower_bound(a: Polynomial, lower: dict[str, int], above: dict[str, int]) -> None:
    bound = polynomial.least(a, lower)
    if bound is not None:
        assert at(a, {name: lower[name] + above[name] - 1 for name in NAMES}) >= bound


def test_other_operations_are_atoms() -> None:
    assert polynomial_of(Expr("2*((n)//(2))**2")) == {(("(n)//(2)", 2),): 2}
    assert polynomial_of(7) == {(): 7}
