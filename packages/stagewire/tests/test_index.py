"""Index arithmetic: every simplification gives the same integer at every point."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagewire import index as ix
from stagewire.expr import Dim, evaluate, symbol
from stagewire.loop import Index
from stagewire.testing.symbolic import instantiated

SIZES = {"i": 4, "j": 6, "k": 2}


def value_at(index: Index, point: dict[str, int]) -> int:
    """The integer that an index is worth at a point."""
    return ix.evaluate(index, lambda atom: point[atom.name])


def points() -> list[dict[str, int]]:
    return [dict(zip(SIZES, p, strict=True)) for p in itertools.product(*(range(n) for n in SIZES.values()))]


affine = st.builds(
    lambda c, ts: ix.total([ix.constant(c), *(ix.scale(ix.axis(name), k) for name, k in ts)]),
    st.integers(-9, 20),
    st.lists(st.tuples(st.sampled_from(list(SIZES)), st.sampled_from((-6, -1, 1, 2, 3, 4, 6, 8, 12, 24))), max_size=4),
)
divisors = st.sampled_from((1, 2, 3, 4, 6, 8, 12, 24))


@given(affine, divisors)
def test_floor_div_and_mod_are_pythons(a: Index, divisor: int) -> None:
    quotient, rest = ix.floor_div(a, divisor, SIZES), ix.mod(a, divisor, SIZES)
    for point in points():
        assert value_at(quotient, point) == value_at(a, point) // divisor
        assert value_at(rest, point) == value_at(a, point) % divisor


@given(affine, divisors, divisors)
def test_nested_quotients(a: Index, first: int, second: int) -> None:
    found = ix.mod(ix.floor_div(a, first, SIZES), second, SIZES)
    again = ix.floor_div(ix.mod(a, first, SIZES), second, SIZES)
    for point in points():
        assert value_at(found, point) == value_at(a, point) // first % second
        assert value_at(again, point) == value_at(a, point) % first // second


@given(affine, divisors)
def test_a_quotient_and_its_remainder_recombine(a: Index, divisor: int) -> None:
    whole = ix.total([ix.scale(ix.floor_div(a, divisor, SIZES), divisor), ix.mod(a, divisor, SIZES)])
    for point in points():
        assert value_at(whole, point) == value_at(a, point)


@given(affine, affine)
def test_substitution(a: Index, b: Index) -> None:
    inside = ix.mod(b, SIZES["i"], SIZES)  # what stands for an axis lies in its range
    found = ix.substitute(ix.floor_div(a, 6, SIZES), {"i": inside}, SIZES)
    for point in points():
        assert value_at(found, point) == value_at(a, {**point, "i": value_at(inside, point)}) // 6


@given(affine)
def test_range_holds_every_value(a: Index) -> None:
    bounds = ix.range_of(ix.mod(a, 8, SIZES), SIZES)
    assert bounds is not None
    values = [value_at(ix.mod(a, 8, SIZES), point) for point in points()]
    assert bounds[0] <= min(values) <= max(values) <= bounds[1]


@settings(max_examples=200)
@given(st.data())
def test_reshape_keeps_the_row_major_order(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from((1, 2, 3, 4, 6)), max_size=4)))
    rest, target = math.prod(shape), []
    while rest > 1:
        target.append(data.draw(st.sampled_from([n for n in range(2, rest + 1) if rest % n == 0])))
        rest //= target[-1]
    names = [f"a{d}" for d in range(len(shape))]
    sizes = dict(zip(names, shape, strict=True))
    indices = tuple(ix.axis(name) if size != 1 else ix.ZERO for name, size in zip(names, shape, strict=True))
    found = ix.reshape(indices, shape, tuple(target), sizes)
    assert len(found) == len(target)
    for number, point in enumerate(itertools.product(*(range(n) for n in shape))):
        at = dict(zip(names, point, strict=True))
        position = 0
        for size, coordinate in zip(target, found, strict=True):
            assert 0 <= value_at(coordinate, at) < size
            position = position * size + value_at(coordinate, at)
        assert position == number


@pytest.mark.parametrize(
    ("position", "divisor", "text"),
    [
        (ix.add(ix.scale(ix.axis("i"), 6), ix.axis("j")), 6, "i"),
        (ix.add(ix.scale(ix.axis("i"), 6), ix.axis("j")), 3, "2*i + j//3"),
        (ix.add(ix.scale(ix.axis("i"), 12), ix.scale(ix.axis("j"), 2)), 24, "i//2"),
        (ix.value("v"), 4, "v//4"),
    ],
)
def test_simplified_forms(position: Index, divisor: int, text: str) -> None:
    assert ix.str_index(ix.floor_div(position, divisor, SIZES)) == text


def test_symbolic_sizes_simplify_where_no_value_of_them_matters() -> None:
    n = symbol("n")
    whole = ix.linear((ix.axis("i"), ix.axis("j")), (n, 1))
    assert ix.str_index(ix.floor_div(whole, n, {"i": 4, "j": n})) == "i"
    assert ix.str_index(ix.floor_div(whole, n, {"i": 4, "j": symbol("m")})) == "i + j//n"
    edge = (n + 1) // 2
    pixel = ix.linear((ix.axis("i"), ix.axis("j"), ix.axis("k")), (edge * edge, edge, 1))
    sizes = {"i": symbol("m"), "j": edge, "k": edge}
    assert ix.str_index(ix.floor_div(pixel, edge * edge, sizes)) == "i"
    assert ix.str_index(ix.mod(ix.floor_div(pixel, edge, sizes), edge, sizes)) == "j"
    other = {"i": symbol("m"), "j": (n - 3) // 2, "k": 1}  # an edge of which nobody knows that it is not -1
    assert not ix.lies_within(ix.scale(ix.axis("i"), (n - 3) // 2), 0, symbol("m") * n * n, other)


def test_equal_sums_are_equal_data() -> None:
    a = ix.total([ix.axis("i"), ix.scale(ix.axis("j"), 3), ix.axis("i")])
    b = ix.add(ix.scale(ix.axis("j"), 3), ix.scale(ix.axis("i"), 2))
    assert a == b
    assert hash(a) == hash(b)


N, M = symbol("n"), symbol("m")
Q, R = (N + 1) // 2, (N - 3) // 2
AXES: dict[str, Dim] = {"i": N, "j": M, "k": 3, "l": N * 2, "o": M + 1, "p": Q, "q": Q * M}
VALUES = [{"n": n, "m": m} for n, m in ((1, 1), (2, 3), (3, 2), (4, 1))]
symbolic = st.builds(
    lambda c, ts: ix.total([ix.constant(c), *(ix.scale(ix.axis(name), k) for name, k in ts)]),
    st.sampled_from((0, 0, 1, -2, N, N * M, N - 1, M * 6)),
    st.lists(
        st.tuples(
            st.sampled_from(list(AXES)),
            st.sampled_from((1, 1, 2, 3, -1, N, M, N * 2, N * M, N * 3, M + 1, Q, Q * Q, Q * M, R)),
        ),
        max_size=4,
    ),
)
symbolic_divisors = st.sampled_from((2, 3, N, M, N * 2, N * 3, N * M, N * M * 2, M + 1, Q, Q * Q, Q * M, Q * 2))


@settings(max_examples=300, deadline=None)
@given(symbolic, symbolic_divisors, symbolic_divisors)
def test_quotients_by_symbolic_sizes_are_pythons(a: Index, first: Dim, second: Dim) -> None:
    quotient, rest = ix.floor_div(a, first, AXES), ix.mod(a, first, AXES)
    nested = ix.mod(quotient, second, AXES)
    bounds = ix.bounds_of(a, AXES)
    for values in VALUES:
        sizes = {name: evaluate(size, values) for name, size in AXES.items()}
        at = [instantiated(index, values) for index in (a, quotient, rest, nested)]
        x, y = evaluate(first, values), evaluate(second, values)
        ends = None if bounds is None else [evaluate(end, values) for end in bounds]
        for point in itertools.product(*(range(size) for size in sizes.values())):
            number, *found = (value_at(index, dict(zip(sizes, point, strict=True))) for index in at)
            assert found == [number // x, number % x, number // x % y]
            assert ends is None or ends[0] <= number <= ends[1]
