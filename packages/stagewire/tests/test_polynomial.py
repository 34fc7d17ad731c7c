"""Polynomials against Python's integers, and against sympy, whose text they must give."""

from __future__ import annotations

import operator

import pytest
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stagewire.bounds import bounds_of
from stagewire.errors import ExprError
from stagewire.expr import Expr, dim_of, evaluate, parse_expr, polynomial_of
from stagewire.polynomial import Polynomial, constant, largest, smallest, symbol

NAMES = ("n", "m", "s0", "s10")
VALUES = st.fixed_dictionaries({name: st.integers(-6, 9) for name in NAMES})
OPERATIONS = {
    "+": (operator.add, operator.add),
    "-": (operator.sub, operator.sub),
    "*": (operator.mul, operator.mul),
    "//": (operator.floordiv, operator.floordiv),
    "%": (operator.mod, operator.mod),
    "Min": (smallest, min),
    "Max": (largest, max),
}
Tree = object


def trees(names: tuple[str, ...] = tuple(OPERATIONS)) -> st.SearchStrategy[Tree]:
    leaves = st.one_of(st.sampled_from(NAMES), st.integers(-4, 8))
    return st.recursive(leaves, lambda part: st.tuples(st.sampled_from(names), part, part), max_leaves=8)


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
    except (ZeroDivisionError, ExprError):
        assume(False)
        raise


@settings(max_examples=300, deadline=None)
@given(trees(), VALUES)
def test_simplification_preserves_the_value(tree: Tree, values: dict[str, int]) -> None:
    built, expected = build_or_reject(tree, values)
    try:
        assert built.evaluate(values) == expected
    except ZeroDivisionError:
        assume(False)
    assert all(built.terms.values())


@settings(max_examples=300, deadline=None)
@given(trees(), VALUES)
def test_text_and_steps_say_the_same(tree: Tree, values: dict[str, int]) -> None:
    built, _ = build_or_reject(tree, values)
    assert polynomial_of(Expr(built.text)) == built
    stack: list[int] = []
    try:
        for kind, operand in built.steps:
            if operand == "":
                right = stack.pop()
                stack[-1] = OPERATIONS[kind][1](stack[-1], right)
            else:
                stack.append(operand if isinstance(operand, int) else values[operand])
        assert stack == [built.evaluate(values)]
    except ZeroDivisionError:
        assume(False)


@settings(max_examples=200, deadline=None)
@given(trees(("+", "-", "*")))
def test_text_is_sympys(tree: Tree) -> None:
    built = build(tree)
    value = sympy.expand(eval(built.text, {name: sympy.Symbol(name, integer=True) for name in NAMES}))
    assert str(value) == built.text


@settings(max_examples=100, deadline=None)
@given(trees(), trees(), VALUES)
def test_substitution_means_what_it_says(tree: Tree, meaning: Tree, values: dict[str, int]) -> None:
    built, _ = build_or_reject(tree, values)
    inner, number = build_or_reject(meaning, values)
    try:
        expected = compute(tree, {**values, "n": number})
        assert built.substitute({"n": inner}).evaluate(values) == expected
    except (ZeroDivisionError, ExprError):
        assume(False)


@settings(max_examples=200, deadline=None)
@given(trees(("+", "-", "*")), trees(("+", "-", "*")), VALUES)
def test_division_with_a_rest(a: Tree, b: Tree, values: dict[str, int]) -> None:
    left, right = build(a), build(b)
    found = left.divide(right)
    assert (found is None) is (not right)
    if found is not None:
        assert found[0] * right + found[1] == left
        assert (left * right).divide(right) == (left, constant(0))


@settings(max_examples=300, deadline=None)
@given(trees(), st.fixed_dictionaries({name: st.tuples(st.integers(-3, 4), st.integers(0, 6)) for name in NAMES}),
       st.fixed_dictionaries({name: st.integers(0, 6) for name in NAMES}))  # fmt: skip
def test_bounds(tree: Tree, ranges: dict[str, tuple[int, int]], steps: dict[str, int]) -> None:
    values = {name: low + min(steps[name], length) for name, (low, length) in ranges.items()}
    built, expected = build_or_reject(tree, values)
    known = tuple((name, (low, low + length)) for name, (low, length) in ranges.items())
    low, high = bounds_of(built, known)
    assert low is None or low <= expected
    assert high is None or expected <= high
    low, _ = bounds_of(built, (), (-3, None))
    assert low is None or low <= expected


@pytest.mark.parametrize(
    ("text", "low"),
    [("(n + 1)//(2)", 0), ("(n - 1)//(2)", -1), ("Max(0, n - 1)", 0), ("(n - 9)%(4)", 0), ("n - m", None)],
)
def test_bounds_of_sizes(text: str, low: int | None) -> None:
    assert bounds_of(polynomial_of(Expr(text)), (), (0, None))[0] == low


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("(5*n + 3) // 4", "(n + 3)//(4) + n"),
        ("(2*n) // 4", "(n)//(2)"),
        ("(n*m + m) // m", "n + 1"),
        ("(n*m + 1) // m", "(1)//(m) + n"),
        ("n // -2", "(n)//(2) - n"),
        ("(n//2) * -1 + 3", "-((n)//(2)) + 3"),
        ("((n//2)**2) * m", "((n)//(2))**2*m"),
        ("(9*n + 6) % 4", "(n + 2)%(4)"),
        ("(2*n) % 4", "2*((n)%(2))"),
        ("(8*n) % 4", "0"),
        ("n % m", "-((n)//(m))*m + n"),
        ("Min(n, Min(m, n), 7)", "Min(7, m, n)"),
        ("Max(n, n - 1)", "n"),
        ("Min(n + 2, n)", "n"),
        ("Max(0, n) + Max(n, 0)", "2*(Max(0, n))"),
    ],
)
def test_canonical_forms(text: str, canonical: str) -> None:
    assert str(parse_expr(text)) == canonical


@pytest.mark.parametrize("text", ["n // 0", "n % 0", "(n + m) ** 99", "n ** m"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ExprError):
        parse_expr(text)


def test_large_powers_of_one_term() -> None:
    assert parse_expr("(2*n*m)**30") == Expr(f"{2**30}*m**30*n**30")


def test_forms() -> None:
    n, m = symbol("n"), symbol("m")
    assert (n * m * 64 // (n * m)).number == 64
    assert n * (m + 1) * 6 // ((m + 1) * n) == constant(6)
    assert (n * 4 + 3) // 4 == n
    assert n * 5 // 4 == n + n // 4
    assert (n + m) * (n - m) == n * n - m * m
    assert (n * 8 % 4).number == 0
    assert polynomial_of(Expr("2*((n)//(2))**2")).terms == {(("(n)//(2)", 2),): 2}
    assert polynomial_of(7).terms == {(): 7}
    assert dim_of(constant(7)) == 7


def test_names_that_python_knows_are_no_symbols() -> None:
    for text in ("True", "None", "lambda", "Min"):
        with pytest.raises(ExprError):
            evaluate(Expr(text), {text: 1})
