"""Creation prims: tensors from nothing. The device is the one the result type states."""

from __future__ import annotations

from primops.prims.layouts import FLOATS, INTEGERS, SUPPORTED, tensor
from stagewire.expr import Dim
from stagewire.types import TensorType
from stagewire.vocabulary import Constraint, Op, parameters


def _full(shape: tuple[Dim, ...], value: float, dtype: str) -> tuple[TensorType, ...]:
    return (tensor(dtype, shape),)


def _iota(length: Dim, start: float, step: float, dtype: str) -> tuple[TensorType, ...]:
    return (tensor(dtype, (length,)),)


def _full_dtype(shape: tuple[Dim, ...], value: float, dtype: str) -> str | None:
    return None if dtype in SUPPORTED else f"{dtype} is not supported"


def _iota_dtype(length: Dim, start: float, step: float, dtype: str) -> str | None:
    if dtype not in FLOATS | INTEGERS:
        return f"{dtype} does not count"
    if dtype in INTEGERS and (isinstance(start, float) or isinstance(step, float)):
        return f"float start or step for {dtype}"
    return None


N1 = Constraint("N1", "The dtype is supported.", _full_dtype, ("full", ((2,), 0, "complex64")))
N2 = Constraint(
    "N2", "The dtype is an integer or float; integers count by integers.", _iota_dtype, ("iota", (3, 0, 0.5, "int64"))
)

OPS: tuple[Op, ...] = (
    Op(
        "full", "creation", parameters("shape: sizes, value: number, dtype: dtype"), "Every element is value.",
        _full, (N1,), "full([2, 3], 0.0, dtype(float32)) -> f32[2, 3]",
    ),
    Op(
        "iota", "creation", parameters("length: size, start: number, step: number, dtype: dtype"),
        "Element i is start + i * step, computed in float64 (or int64) and converted.",
        _iota, (N2,), "iota(4, 0, 1, dtype(int64)) -> i64[4]",
    ),
)  # fmt: skip
