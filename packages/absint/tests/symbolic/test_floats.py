"""Floats computed of sizes: they are what Python says, and decide and lead to it, at all sizes that are accepted."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from absint import AbstractMode, AbstractTensor, contiguous
from absint.symbolic import ShapeEnv, Size, SizeFloat, make_size
from absint.symbolic.floats import as_float
from stagewire.capture import Relation
from stagewire.expr import evaluate

HOLDS = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def integers(depth: int) -> st.SearchStrategy[str]:
    leaf = st.sampled_from(["a", "b", "1", "2", "3", "5"])
    if depth == 0:
        return leaf
    inner = integers(depth - 1)
    return st.one_of(
        leaf,
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(["//", "%"]), st.sampled_from(["2", "3", "a"])),
        st.builds("{}({})".format, st.sampled_from(["floor", "ceil", "trunc"]), floats(depth - 1)),
    )


def floats(depth: int) -> st.SearchStrategy[str]:
    leaf = st.builds("({} / {})".format, integers(0), st.sampled_from(["a", "b", "2", "3", "8"]))
    if depth == 0:
        return st.one_of(leaf, st.sampled_from(["0.5", "1.5", "0.7", "-0.25"]))
    inner = floats(depth - 1)
    either = st.one_of(inner, integers(depth - 1))
    return st.one_of(
        leaf,
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), either),
        st.builds("({} {} {})".format, either, st.sampled_from("+-*/"), inner),
        st.builds("real({})".format, integers(depth - 1)),
        st.builds("root({})".format, inner),
        st.builds("(-{})".format, inner),
    )


def programs() -> st.SearchStrategy[str]:
    comparison = st.builds(
        "({} {} {})".format, floats(1), st.sampled_from(sorted(HOLDS)), st.one_of(floats(1), integers(1))
    )
    return st.lists(st.one_of(integers(2), floats(2), comparison), min_size=1, max_size=4).map(
        lambda parts: f"({', '.join(parts)},)"
    )


def whole(host: Any) -> Any:
    return lambda number: (
        make_size(number.node.env, number.node.whole(host)) if isinstance(number, SizeFloat) else host(number)
    )


SYMBOLIC = {
    **{host.__name__: whole(host) for host in (math.floor, math.ceil, math.trunc)}, "real": as_float,
    "root": lambda number: number**0.5,
}  # fmt: skip
PYTHON = {
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "real": float,
    "root": lambda number: number**0.5,
}


def run(program: str, functions: dict[str, Any], **sizes: Any) -> Any:
    """The results, or the class of the error; a program that goes through complex numbers is an error too."""
    try:
        made = eval(program, {**functions, **sizes})
    except (ArithmeticError, ValueError, TypeError) as error:
        return type(error)
    return TypeError if any(isinstance(item, complex) for item in made) else made


def value_of(item: Any, values: dict[str, int]) -> Any:
    match item:
        case Size():
            return item.node.value.evaluate(values)
        case SizeFloat():
            return item.node.term.evaluate(lambda size: size.evaluate(values), {}.__getitem__)
    return item


def holds(relation: Relation, values: dict[str, int]) -> bool:
    return HOLDS[relation.operator](evaluate(relation.left, values), evaluate(relation.right, values))


def same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and (left == right or (left != left and right != right))


@settings(max_examples=400, deadline=None)
@given(programs(), st.integers(2, 9), st.integers(2, 9))
def test_a_program_of_sizes_means_what_python_says(program: str, a: int, b: int) -> None:
    env = ShapeEnv()
    sizes = {name: make_size(env, env.create(name, hint)) for name, hint in (("a", a), ("b", b))}
    found, expected = run(program, SYMBOLIC, **sizes), run(program, PYTHON, a=a, b=b)
    if isinstance(expected, type):
        assert isinstance(found, type)
        return
    assert not isinstance(found, type)
    assert all(holds(relation, {"a": a, "b": b}) for relation in env.relations)
    for a, b in itertools.product(range(2, 12), repeat=2):
        values = {"a": a, "b": b}
        if all(holds(relation, values) for relation in env.relations):
            expected = run(program, PYTHON, **values)
            assert not isinstance(expected, type)
            assert all(same(value_of(one, values), other) for one, other in zip(found, expected, strict=True))


def test_which_ways_stay_open() -> None:
    env = ShapeEnv()
    n = make_size(env, env.create("n", 8))
    opened = [n / 2, 1 / n, n * 0.5, n**0.5, n**-1, 2.5 - n, as_float(n) / (n + 1), whole(math.ceil)(n / 32) * 32]
    assert all(isinstance(item, (Size, SizeFloat)) for item in opened)
    assert n / 2 > 0.5
    assert n >= 1.5
    assert env.relations == []
    assert n / 2 > 3.0
    assert [f"{r.left} {r.operator} {r.right}" for r in env.relations] == ["n >= 7"]


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
@pytest.mark.parametrize(("first", "second"), [(7, 3), (5, 10), (3, 3), (49, 21)])
def test_quotients_are_compared_without_fixing_sizes(compare: Any, first: int, second: int) -> None:
    for a, b in itertools.product((2, 6, 7, 14), (2, 3, 6)):
        env = ShapeEnv()
        rows, columns = (make_size(env, env.create(name, hint)) for name, hint in (("a", a), ("b", b)))
        answer = compare(rows / first, columns / second)
        assert answer is compare(a / first, b / second)
        served = 0
        for values in ({"a": a, "b": b} for a, b in itertools.product(range(2, 40), repeat=2)):
            if all(holds(relation, values) for relation in env.relations):
                assert compare(values["a"] / first, values["b"] / second) is answer
                served += 1
        # Those that are equal are as many as have this ratio.
        assert served > (1 if compare in (operator.eq, operator.ne) else 38)
        assert not any(relation.operator == "==" and type(relation.right) is int for relation in env.relations)


def test_quotients_that_rounding_may_make_equal_are_fixed() -> None:
    env = ShapeEnv()
    large = (1 << 52) + 1
    first = make_size(env, env.create("n", large))
    second = make_size(env, env.create("m", large + 1))
    assert (first / 3 < second / 3) is (large / 3 < (large + 1) / 3)
    values = [{"n": large + step, "m": large + 1 + other} for step in range(3) for other in range(3)]
    for each in values:
        if all(holds(relation, each) for relation in env.relations):
            assert each["n"] / 3 < each["m"] / 3


def test_what_python_refuses_at_other_sizes_is_guarded() -> None:
    env = ShapeEnv()
    n = make_size(env, env.create("n", 8))
    assert isinstance(1 / (n - 5), SizeFloat)
    assert [f"{r.left} {r.operator} {r.right}" for r in env.relations] == ["n != 5"]
    with pytest.raises(ZeroDivisionError):
        1 / (n - 8.0)


CALLS: dict[str, Any] = {
    "mul": lambda x, f: x * f, "sub": lambda x, f: f - x, "div": lambda x, f: f / x, "pow": lambda x, f: x**f,
    "base": lambda x, f: f**x, "add": lambda x, f: torch.add(x, x, alpha=f), "ge": lambda x, f: x >= f,
    "where": lambda x, f: torch.where(x > 0, x, f), "rest": torch.fmod,
    "full": lambda x, f: torch.full((3,), f, dtype=x.dtype), "like": lambda x, f: torch.full_like(x, f),
    "new": lambda x, f: x.new_full((2,), f), "clamp": lambda x, f: x.clamp(f), "fill": lambda x, f: x.clone().fill_(f),
    "masked": lambda x, f: x.masked_fill(x > f, f), "mod": lambda x, f: x % f, "floor": lambda x, f: x // f,
    "scalar": lambda x, f: torch.scalar_tensor(f, dtype=x.dtype),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.complex64])
@pytest.mark.parametrize("shape", [(2, 3), ()])
@pytest.mark.parametrize("name", CALLS)
def test_types_are_those_of_plain_floats(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    env = ShapeEnv()
    n = make_size(env, env.create("n", 8))
    expected, found = (answer(CALLS[name], shape, dtype, number) for number in (4.0, n / 2))
    assert found == expected
    assert env.relations == []


def answer(call: Any, shape: tuple[int, ...], dtype: torch.dtype, number: Any) -> Any:
    """The type of the result, or the class of the error."""
    with AbstractMode():
        try:
            return call(AbstractTensor(contiguous(shape, dtype)), number).meta
        except RuntimeError as error:
            return type(error)
