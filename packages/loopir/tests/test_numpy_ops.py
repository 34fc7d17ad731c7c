"""The numpy meaning of the loop ops, against Python's own arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopir import numpy_ops
from loopir.errors import NotInterpretable
from stagewire.loop_ops import OPS

SPECIAL_FUNCTIONS = {
    "erf": math.erf, "erfc": math.erfc, "lgamma": math.lgamma, "exp": math.exp, "expm1": math.expm1,
    "tanh": math.tanh, "asinh": math.asinh, "atan": math.atan, "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}  # fmt: skip


def test_every_op_but_the_casts_has_a_meaning() -> None:
    assert set(OPS) - set(numpy_ops.TABLE) == {"convert", "bitcast"}
    assert set(numpy_ops.TABLE) <= set(OPS)


@pytest.mark.parametrize("op", SPECIAL_FUNCTIONS)
@given(x=st.floats(0.01, 20))
def test_functions(op: str, x: float) -> None:
    found = numpy_ops.apply(op, [np.array([x])], "float64")
    assert found[0] == pytest.approx(SPECIAL_FUNCTIONS[op](x), rel=1e-12)


@given(st.floats(0.05, 30))
def test_digamma_is_the_slope_of_lgamma(x: float) -> None:
    h = 1e-5 * max(x, 1)
    slope = (math.lgamma(x + h) - math.lgamma(x - h)) / (2 * h)
    found = numpy_ops.apply("digamma", [np.array([x])], "float64")[0]
    assert found == pytest.approx(slope, rel=1e-5, abs=1e-5)


@given(st.floats(-0.999, 0.999))
def test_erfinv_inverts_erf(x: float) -> None:
    found = numpy_ops.apply("erfinv", [np.array([x])], "float64")[0]
    assert math.erf(found) == pytest.approx(x, rel=1e-9, abs=1e-12)


@given(st.integers(-50, 50), st.integers(-9, 9).filter(bool))
def test_integer_division(a: int, b: int) -> None:
    x, y = np.array([a]), np.array([b])
    assert numpy_ops.apply("floor_div", [x, y], "int64")[0] == a // b
    assert numpy_ops.apply("remainder", [x, y], "int64")[0] == a % b
    assert numpy_ops.apply("trunc_div", [x, y], "int64")[0] == int(a / b)
    assert numpy_ops.apply("fmod", [x, y], "int64")[0] == math.fmod(a, b)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-3, 40))
def test_shifts_outside_the_width(a: int, b: int) -> None:
    x, y = np.array([a], np.int32), np.array([b], np.int32)
    left, right = (numpy_ops.apply(op, [x, y], "int32")[0] for op in ("shift_left", "shift_right"))
    if 0 <= b < 32:
        assert left == ((a << b) + 2**31) % 2**32 - 2**31
        assert right == a >> b
    else:
        assert left == 0
        assert right == (-1 if a < 0 else 0)


def test_nan_passes_through_maximum_but_not_fmax() -> None:
    a, b = np.array([math.nan, 1.0]), np.array([2.0, math.nan])
    assert np.isnan(numpy_ops.apply("maximum", [a, b], "float64")).all()
    assert numpy_ops.apply("fmax", [a, b], "float64").tolist() == [2.0, 1.0]


def test_an_index_outside_is_an_error() -> None:
    assert numpy_ops.apply("wrap_index", [np.array([-1, 2]), np.array(3)], "int64").tolist() == [2, 2]
    with pytest.raises(IndexError, match="size 3"):
        numpy_ops.apply("wrap_index", [np.array([3]), np.array(3)], "int64")
    assert numpy_ops.apply("check_index", [np.array([0, 2]), np.array(3)], "int64").tolist() == [0, 2]
    for outside in (-1, 3):
        with pytest.raises(IndexError, match="size 3"):
            numpy_ops.apply("check_index", [np.array([outside]), np.array(3)], "int64")


def test_a_value_out_of_range_is_an_error() -> None:
    low, high = np.array(0.0), np.array(1.0)
    inside = np.array([0.0, 0.5, 1.0])
    assert numpy_ops.apply("check_range", [inside, low, high], "float64").tolist() == inside.tolist()
    for outside in (-1e-9, 1.1, math.nan, math.inf):
        with pytest.raises(RuntimeError, match="out of the range"):
            numpy_ops.apply("check_range", [np.array([0.5, outside]), low, high], "float64")


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bfloat16_is_the_nearest(x: float) -> None:
    with np.errstate(over="ignore"):
        near = float(numpy_ops.to_bfloat16(np.float32(x)))
    bits = np.array([near], np.float32).view(np.uint32)[0]
    assert bits & 0xFFFF == 0
    if math.isfinite(near):
        steps = np.array([bits - 0x10000, bits + 0x10000], np.uint32).view(np.float32) if bits & 0x7FFF0000 else []
        assert all(abs(near - x) <= abs(float(other) - x) for other in steps if math.isfinite(other))


def test_reductions_over_nothing_give_the_neutral_element() -> None:
    empty = np.zeros((2, 0), np.float32)
    neutral = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
    for kind, want in neutral.items():
        assert numpy_ops.reduce(kind, empty, 0, "float32")[0].tolist() == [want, want]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(NotInterpretable, match="no numpy meaning for gamma"):
        numpy_ops.apply("gamma", [np.zeros(1)], "float32")
    with pytest.raises(NotInterpretable, match="float8_e5m2"):
        numpy_ops.held_type("float8_e5m2")
