"""Literals are rounded as their dtype holds them; folding never changes a value."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopir import numpy_ops
from loopir.emitter import RULES, fold, round_literal
from stagewire.graph import NonFinite, Ref
from stagewire.literals import FLOATS

SPECIAL = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 1e-45, 3e38]


@given(st.floats(width=32), st.sampled_from(["float16", "float32", "float64"]))
def test_round_literal_is_numpys_cast(value: float, dtype: str) -> None:
    found = round_literal(value, dtype)  # type: ignore[arg-type]
    have = float(found.text) if isinstance(found, NonFinite) else found
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(have, float(np.array(value).astype(dtype)))


@given(st.integers(-(2**70), 2**70), st.sampled_from(["int8", "uint8", "int16", "int32", "int64"]))
def test_integers_wrap(value: int, dtype: str) -> None:
    bits = np.dtype(dtype).itemsize * 8
    assert round_literal(value, dtype) == np.array(value % 2**bits, np.uint64).astype(dtype)  # type: ignore[arg-type]


def test_bfloat16_rounds_to_even() -> None:
    assert round_literal(1.00390625, "bfloat16") == 1.0  # half way between 1.0 and 1.0078125
    assert round_literal(1.01171875, "bfloat16") == 1.015625
    assert round_literal(3.4e38, "bfloat16") == NonFinite("inf")


CASES = [
    (op, operands, dtype)
    for op in ("mul", "div", "add", "sub")
    for operands in [(Ref("a"), 1), (1, Ref("a")), (Ref("a"), 0), (0, Ref("a")), (Ref("a"), -0.0), (Ref("a"), 0.0)]
    for dtype in ("float32", "int64", "bool")
    if dtype == "float32" or (op != "div" and (dtype == "int64" or op != "sub"))
]


@pytest.mark.parametrize(("op", "operands", "dtype"), CASES)
def test_folding_keeps_the_value(op: str, operands: tuple[object, ...], dtype: str) -> None:
    found = fold(op, operands, dtype, dtype)  # type: ignore[arg-type]
    if found is None:
        return
    special = SPECIAL if dtype in FLOATS else [0, 1] if dtype == "bool" else [0, 1, -5, 2**62]
    a = np.array(special).astype(dtype)
    values = [a if isinstance(o, Ref) else np.array(o).astype(dtype) for o in operands]
    want = numpy_ops.apply(op, values, dtype)
    np.testing.assert_array_equal(a, want)
    np.testing.assert_array_equal(np.signbit(a.astype(float)), np.signbit(want.astype(float)))


def test_what_must_not_fold_does_not() -> None:
    assert fold("add", (Ref("a"), 0.0), "float32", "float32") is None  # -0.0 + 0.0 is 0.0
    assert fold("mul", (Ref("a"), 0), "float32", "float32") is None  # nan * 0 is nan
    assert fold("mul", (Ref("a"), True), "bool", "bool") is None
    assert fold("exp", (Ref("a"),), "float32", "float32") is None


def test_conditions_fold() -> None:
    assert fold("where", (True, Ref("a"), Ref("b")), "float32", "float32") == Ref("a")
    assert fold("where", (Ref("c"), Ref("a"), Ref("a")), "float32", "float32") == Ref("a")
    assert fold("lt", (3, 4), "bool", "int64") is True
    assert fold("logical_and", (Ref("a"), False), "bool", "bool") is False
    assert fold("logical_or", (Ref("a"), False), "bool", "bool") == Ref("a")
    assert set(RULES) >= {"convert", "where", "mul"}
