"""Size expressions against Python's integers."""

from __future__ import annotations

import operator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stagewire.errors import ExprError
from stagewire.expr import Dim, Expr, evaluate, evaluator, parse_expr, polynomial_of, symbol, symbols_of
from stagewire.testing.basics import exprs

VALUES = st.fixed_dictionaries({"a": st.integers(-9, 9), "b": st.integers(-9, 9)})
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod}


@settings(max_examples=60, deadline=None)
@given(exprs(("a", "b")), exprs(("a", "b")), st.sampled_from(sorted(OPERATIONS)), VALUES)
def test_arithmetic_means_what_python_means(left: Dim, right: Dim, name: str, values: dict[str, int]) -> None:
    try:
        a, b = evaluate(left, values), evaluate(right, values)
    except ExprError:  # divides by zero
        assume(False)
    assume(b != 0 or name not in ("//", "%"))
    try:
        combined = OPERATIONS[name](left, right)
    except (ExprError, ZeroDivisionError):
        assume(right == 0)
        return
    try:
        found = evaluate(combined, values)
    except ExprError:  # the canonical form divides where the sum of its parts does not
        assume(False)
    assert found == OPERATIONS[name](a, b)


@settings(max_examples=60, deadline=None)
@given(exprs(("a", "b")))
def test_canonical_text_is_a_fixed_point(dim: Dim) -> None:
    assert parse_expr(str(dim)) == dim


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("n + n", "2*n"),
        ("n - n", 0),
        ("2*(n + 1)", "2*n + 2"),
        ("(4*n) // 2", "2*n"),
        ("Max(n, 1)", "Max(1, n)"),
        ("-n", "-n"),
        ("n*n", "n**2"),
        ("7 % 4", 3),
        ("-7 // 2", -4),
    ],
)
def test_canonical_forms(text: str, canonical: str | int) -> None:
    found = parse_expr(text)
    assert (found.text if isinstance(found, Expr) else found) == canonical


@pytest.mark.parametrize(
    "text", ["", "n +", "f(n)", "n / 2", "n.m", "lambda: 1", "1.5", "'a'", "__import__('os')", "n[0]"]
)
def test_text_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(ExprError) as error:
        parse_expr(text)
    assert error.value.code == "SW004"


@pytest.mark.parametrize("name", ["", "1a", "a b", "Min", "Max"])
def test_bad_symbol_names_are_refused(name: str) -> None:
    with pytest.raises(ExprError, match="symbol name"):
        symbol(name)


def test_missing_values_and_divisions_by_zero_are_named() -> None:
    with pytest.raises(ExprError, match="no value for the symbol 's1'"):
        evaluate(symbol("s0") * symbol("s1"), {"s0": 2})
    with pytest.raises(ExprError, match="divides by zero"):
        evaluate(4 // symbol("s0"), {"s0": 0})


def test_symbols() -> None:
    assert symbols_of(symbol("a") * 2 + symbol("b")) == {"a", "b"}
    assert symbols_of(7) == frozenset()


def test_reflected_operators() -> None:
    n = symbol("n")
    for found, expected in ((1 + n, 6), (7 - n, 2), (3 * n, 15), (11 // n, 2), (11 % n, 1), (-n, -5)):
        assert evaluate(found, {"n": 5}) == expected


HUGE = {
    "power": "2**99999999999999",
    "power of a symbol": "s0**99999999999",
    "power of a power": "((((2**64)**64)**64)**64)**64",
    "terms of a product": "*".join(f"(s{number}+1)" for number in range(24)),
    "terms of a power": "(s0+s1+s2)**40",
    "terms of a quotient": "(s0**64*s1**64*s2**64)//(s0 - s1 - s2)",
    "digits": "9" * 4000,
    "length": "+".join(["s0"] * 20000),
    "sides": "Max(" + ",".join(f"s{number}*s{number + 1}" for number in range(500)) + ")",
    "depth": "-" * 5000 + "s0",
}


@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE)
def test_sizes_have_bounds(text: str) -> None:
    """They are refused at once, where reading them would take hours or all memory."""
    for read in (parse_expr, lambda text: polynomial_of(Expr(text))):
        with pytest.raises(ExprError):
            read(text)


@pytest.mark.parametrize("text", ["2**99999999999999", "((((s0**64)**64)**64)**64)**64", "2**1000000000"])
def test_values_have_bounds(text: str) -> None:
    for value in (evaluate, lambda size, values: evaluator(size)(values)):
        with pytest.raises(ExprError, match="no size"):
            value(Expr(text), {"s0": 7})


def test_sizes_within_the_bounds_are_computed() -> None:
    assert parse_expr("2**60") == 2**60
    assert parse_expr("s0**64").text == "s0**64"
    long = parse_expr("+".join(f"s{number}" for number in range(100)))
    assert evaluate(long, {f"s{number}": number for number in range(100)}) == 4950
