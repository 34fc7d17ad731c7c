"""Floors, remainders, Min and Max of sizes: what they are worth, and that equal ones read alike."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stagewire.errors import ExprError
from stagewire.expr import Expr, evaluate, parse_expr, polynomial_of
from stagewire.quotients import is_never_negative

NAMES = ("n", "m", "s0")
LEAVES = st.sampled_from(NAMES) | st.integers(-6, 9).map(str)


def _joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(inner, st.sampled_from(("+", "-", "*", "//", "%")), inner)
    calls = st.tuples(st.sampled_from(("Min", "Max")), inner, inner)
    return pairs.map(lambda part: f"({part[0]}) {part[1]} ({part[2]})") | calls.map(
        lambda part: f"{part[0]}({part[1]}, {part[2]})"
    )


TEXTS = st.recursive(LEAVES, _joined, max_leaves=8)
VALUES = st.fixed_dictionaries({name: st.integers(-9, 12) for name in NAMES})


@settings(max_examples=300, deadline=None)
@given(TEXTS, VALUES)
def test_canonical_text_is_worth_the_same_and_a_fixed_point(text: str, values: dict[str, int]) -> None:
    try:
        found = parse_expr(text)
        expected = eval(text, {"Min": min, "Max": max, **values})
        worth = evaluate(found, values)
    except (ExprError, ZeroDivisionError):
        assume(False)
    assert worth == expected
    assert parse_expr(str(found)) == found


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.fixed_dictionaries({name: st.integers(0, 12) for name in NAMES}))
def test_what_is_never_negative(text: str, sizes: dict[str, int]) -> None:
    try:
        names = {name for monomial in polynomial_of(parse_expr(text)) for name, _ in monomial}
        worth = {name: evaluate(Expr(name), sizes) for name in names}
    except (ExprError, ZeroDivisionError):
        assume(False)
    assert all(number >= 0 for name, number in worth.items() if is_never_negative(name))


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
