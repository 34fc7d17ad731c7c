"""Types of values."""

from __future__ import annotations

import pytest
from hypothesis import given

from stagewire.expr import evaluate, symbol
from stagewire.testing.basics import tensor_types
from stagewire.types import DTYPES, ITEM_SIZE, TensorType, contiguous, contiguous_stride, numel


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((), ()), ((5,), (1,)), ((2, 3, 4), (12, 4, 1)), ((2, 0, 4), (4, 4, 1)), ((1, 1), (1, 1)), ((0,), (1,))],
)
def test_contiguous_strides_are_torchs(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    assert contiguous_stride(shape) == stride


def test_symbolic_strides() -> None:
    n, m = symbol("n"), symbol("m")
    outer, middle, inner = contiguous_stride((2, n, m))
    assert (evaluate(outer, {"n": 3, "m": 5}), middle, inner) == (15, m, 1)


def test_numel() -> None:
    assert numel(()) == 1
    assert numel((2, 0, 3)) == 0
    assert evaluate(numel((2, symbol("n"))), {"n": 7}) == 14


def test_every_dtype_has_a_size() -> None:
    assert set(DTYPES) == set(ITEM_SIZE)


def test_types_print_short() -> None:
    assert str(contiguous("float32", (2, 3))) == "f32[2, 3]"
    assert str(TensorType("bfloat16", (2, 3), (1, 2), 4, "cuda:0", True)) == "bf16[2, 3]{1, 2}+4@cuda:0 grad"
    assert str(contiguous("float32", (symbol("s0"), 3))) == "f32[s0, 3]"


@given(tensor_types(("s0", "s1")))
def test_drawn_types_have_one_rank(kind: TensorType) -> None:
    assert len(kind.shape) == len(kind.stride)
    assert hash(kind) == hash(TensorType(*(getattr(kind, field) for field in kind.__struct_fields__)))
