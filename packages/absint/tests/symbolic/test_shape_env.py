"""What is known of sizes holds for all values in their ranges; what is assumed holds for the hint, and is noted."""

from __future__ import annotations

import itertools
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from absint.errors import SpecializedSize, UndecidedSize
from absint.symbolic import ShapeEnv, Size, from_dim, make_size
from stagewire.capture import Relation
from stagewire.expr import Expr, evaluate, parse_expr
from stagewire.polynomial import Polynomial, constant, symbol

HOLDS = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
COMPARISONS = sorted(HOLDS)


@st.composite
def polynomials(draw: st.DrawFn) -> Polynomial:
    made = constant(draw(st.integers(-9, 9)))
    for term in draw(st.lists(st.sampled_from([("a",), ("b",), ("a", "b"), ("a", "a")]), max_size=3)):
        part = constant(draw(st.integers(-4, 4)))
        for name in term:
            part = part * symbol(name)
        made = made + part
    return made


def environment(hints: dict[str, int], upper: int | None = None) -> ShapeEnv:
    env = ShapeEnv()
    for name, hint in hints.items():
        env.create(name, hint, upper=upper)
    return env


def ask(env: ShapeEnv, value: Polynomial, comparison: str) -> bool:
    return HOLDS[comparison](make_size(env, value), 0)


def holds(relation: Relation, values: dict[str, int]) -> bool:
    return HOLDS[relation.operator](evaluate(relation.left, values), evaluate(relation.right, values))


HINTS = st.fixed_dictionaries({"a": st.integers(2, 7), "b": st.integers(2, 7)})
QUESTIONS = st.lists(st.tuples(polynomials(), st.sampled_from(COMPARISONS)), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(HINTS, QUESTIONS)
def test_the_relations_decide_every_answer(hints: dict[str, int], questions: list[tuple[Polynomial, str]]) -> None:
    """A guard set accepts the sizes that it was made for; for all sizes that it accepts the answers are the same."""
    env = environment(hints, upper=7)
    answers = [ask(env, *question) for question in questions]
    assert answers == [HOLDS[comparison](value.evaluate(hints), 0) for value, comparison in questions]
    assert all(holds(relation, hints) for relation in env.relations)
    for a, b in itertools.product(range(2, 8), repeat=2):
        values = {"a": a, "b": b}
        if all(holds(relation, values) for relation in env.relations):
            assert answers == [HOLDS[comparison](value.evaluate(values), 0) for value, comparison in questions], values


@settings(max_examples=60, deadline=None)
@given(HINTS, QUESTIONS)
def test_a_second_time_nothing_is_assumed(hints: dict[str, int], questions: list[tuple[Polynomial, str]]) -> None:
    env = environment(hints)
    answers = [ask(env, *question) for question in questions]
    before = list(env.relations)
    assert [ask(env, *question) for question in questions] == answers
    assert env.relations == before


def test_what_ranges_say() -> None:
    env = environment({"a": 5, "b": 9})
    a, b = (make_size(env, symbol(name)) for name in "ab")
    assert a != 1
    assert a * b >= a
    assert a * b > b
    assert a + b > 3
    assert a // 2 >= 1
    assert a % 2 < 2
    assert env.relations == []


def test_what_is_asked_of_floors_narrows_the_range() -> None:
    """Sizes of layers with strides: one relation of the size itself, from which the rest follows."""
    env = environment({"n": 64})
    n = make_size(env, symbol("n"))
    half = n // 4 // 2
    assert half != 0
    assert half >= 2
    assert half * half != 1
    assert n // 4 != 1
    assert [f"{relation.left} {relation.operator} {relation.right}" for relation in env.relations] == [
        "n >= 8", "n >= 16",
    ]  # fmt: skip


@st.composite
def floors(draw: st.DrawFn) -> Polynomial:
    made = symbol("a") * draw(st.integers(1, 3)) + draw(st.integers(-9, 9))
    for _ in range(draw(st.integers(1, 3))):
        made = made // draw(st.integers(1, 5)) * draw(st.sampled_from((1, 2, -1, -3)))
        made = made + draw(st.integers(-9, 9))
    return made


@settings(max_examples=150, deadline=None)
@given(floors(), st.integers(2, 40), st.sampled_from(COMPARISONS))
def test_floors_are_compared_as_their_values_are(value: Polynomial, hint: int, comparison: str) -> None:
    env = environment({"a": hint}, upper=40)
    answer = ask(env, value, comparison)
    for a in range(2, 41):
        if all(holds(relation, {"a": a}) for relation in env.relations):
            assert HOLDS[comparison](value.evaluate({"a": a}), 0) == answer
    assert all(holds(relation, {"a": hint}) for relation in env.relations)


def test_there_is_one_size_of_each_expression() -> None:
    env = environment({"n": 6, "m": 6})
    n, m = (make_size(env, symbol(name)) for name in "nm")
    first = n * 2 + 1
    assert first is 1 + n + n
    other = m * 2 + 1
    assert first is not other
    assert n == m
    assert first == other
    assert m * 2 + 1 is n * 2 + 1


def test_relations_read_as_they_were_meant() -> None:
    env = environment({"a": 8, "b": 9})
    a, b = (make_size(env, symbol(name)) for name in "ab")
    assert a % 4 == 0
    assert b > 4
    assert a != b
    assert [f"{r.left} {r.operator} {r.right}" for r in env.relations] == ["(a)%(4) == 0", "b >= 5", "a != b"]


def test_equal_sizes_become_one() -> None:
    env = environment({"a": 6, "b": 12})
    a, b = (make_size(env, symbol(name)) for name in "ab")
    assert b == a * 2
    assert (b * 3 - a * 6) == 0
    assert isinstance(a, Size)
    assert len(env.relations) == 1


FLOORS = st.sampled_from(("1", "n", "n//2", "n//2//2", "m", "n//3", "(n//2 + m)//2"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-8, 8), FLOORS, FLOORS), max_size=4))
def test_equal_floors_read_alike(terms: list[tuple[int, str, str]]) -> None:
    env = environment({"n": 8, "m": 5})
    n, m = (make_size(env, symbol(name)) for name in "nm")
    assert n // 2 == n // 2 // 2 * 2
    assert n == n // 2 // 2 * 4
    assert [str(size) for size in (n // 2 // 2 * 4 * m, n // 2 // 2 * 2, n // 2 // 2 * (n // 2 // 2) * 16)] == [
        "m*n", "(n)//(2)", "n**2"
    ]  # fmt: skip
    value = constant(0)
    for count, left, right in terms:
        value = value + parsed(left) * parsed(right) * count
    for values in ({"n": size, "m": other} for size in (4, 8, 20) for other in (1, 2, 7)):
        assert all(holds(relation, values) for relation in env.relations)
        assert env.reduce(value).evaluate(values) == value.evaluate(values)


def parsed(text: str) -> Polynomial:
    return from_dim(parse_expr(text))


def test_strict_environments_assume_nothing() -> None:
    env = ShapeEnv(strict=True)
    a = make_size(env, env.create("a", 6))
    assert a > 1
    with pytest.raises(UndecidedSize, match="AI012"):
        bool(a > 5)
    env.assume(Relation(Expr("a"), ">=", 6))
    assert a > 5


def test_a_marked_size_is_not_fixed() -> None:
    env = ShapeEnv()
    a = make_size(env, env.create("a", 6, marked="x.shape[0]"))
    assert a > 4
    with pytest.raises(SpecializedSize, match=r"x\.shape\[0\] was marked as dynamic.*x\.shape\[0\] == 6"):
        int(a)
