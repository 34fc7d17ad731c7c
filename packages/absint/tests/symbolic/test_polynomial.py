"""The expression kernel against Python's integers and against sympy's forms."""

from __future__ import annotations

import operator

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from absint.symbolic import polynomial
from absint.symbolic.polynomial import Polynomial, constant, from_dim, symbol
from stagewire.expr import evaluate

NAMES = ("a", "b", "c")
VALUES = st.fixed_dictionaries({name: st.integers(-6, 9) for name in NAMES})
OPERATIONS = {
    "+": (operator.add, operator.add),
    "-": (operator.sub, operator.sub),
    "*": (operator.mul, operator.mul),
    "//": (polynomial.divide, operator.floordiv),
    "%": (polynomial.remainder, operator.mod),
    "min": (polynomial.smallest, min),
    "max": (polynomial.largest, max),
}
Tree = object


def trees() -> st.SearchStrategy[Tree]:
    leaves = st.one_of(st.sampled_from(NAMES), st.integers(-4, 8))
    return st.recursive(leaves, lambda part: st.tuples(st.sampled_from(sorted(OPERATIONS)), part, part), max_leaves=6)


def build(tree: Tree) -> Polynomial:
    match tree:
        case str():
            return symbol(tree)
        case int():
            return constant(tree)
        case (name, left, right):
            return OPERATIONS[name][0](build(left), build(right))
    raise AssertionError(tree)


def compute(tree: Tree, values: dict[str, int]) -> int:
    match tree:
        case str():
            return values[tree]
        case (name, left, right):
            return OPERATIONS[name][1](compute(left, values), compute(right, values))
    return tree


def build_or_reject(tree: Tree, values: dict[str, int]) -> tuple[Polynomial, int]:
    try:
        return build(tree), compute(tree, values)
    except ZeroDivisionError:
        assume(False)
        raise


@settings(max_examples=200, deadline=None)
@given(trees(), VALUES)
def test_simplification_preserves_the_value(tree: Tree, values: dict[str, int]) -> None:
    built, expected = build_or_reject(tree, values)
    assert built.evaluate(values) == expected
    assert all(built.terms.values())


@settings(max_examples=60, deadline=None)
@given(trees(), VALUES)
def test_documents_say_the_same(tree: Tree, values: dict[str, int]) -> None:
    built, expected = build_or_reject(tree, values)
    try:
        assert evaluate(built.dim, values) == expected
        assert from_dim(built.dim).evaluate(values) == expected
    except ZeroDivisionError:
        assume(False)


@settings(max_examples=60, deadline=None)
@given(trees(), trees(), VALUES)
def test_substitution_means_what_it_says(tree: Tree, meaning: Tree, values: dict[str, int]) -> None:
    built, _ = build_or_reject(tree, values)
    inner, number = build_or_reject(meaning, values)
    try:
        expected = compute(tree, {**values, "a": number})
        assert built.substitute({"a": inner}).evaluate(values) == expected
    except ZeroDivisionError:
        assume(False)


def test_forms() -> None:
    n, m = symbol("n"), symbol("m")
    assert polynomial.divide(n * m * 64, n * m).number == 64
    assert polynomial.divide(n * (m + 1) * 6, (m + 1) * n) == constant(6)
    assert polynomial.divide(n * 4 + 3, constant(4)) == n
    assert polynomial.divide(n * 5, constant(4)) == n + polynomial.divide(n, constant(4))
    assert (n + m) * (n - m) == n * n - m * m
    assert polynomial.remainder(n * 8, constant(4)).number == 0
