"""Creation prims: tensors from nothing. The device is the one the result type states."""

from __future__ import annotations

from primops.prims.layouts import FLOATS, INTEGERS, SUPPORTED, tensor
from stagewire.expr import Dim
from stagewire.vocabulary import Op, constraint, parameters


@constraint("The dtype is supported.", ("full", ((2,), 0, "complex64")))
def N1(shape: tuple[Dim, ...], value: float, dtype: str) -> str | None:
    return None if dtype in SUPPORTED else f"{dtype} is not supported"


@constraint("The dtype is an integer or float; integers count by integers.", ("iota", (3, 0, 0.5, "int64")))
def N2(length: Dim, start: float, step: float, dtype: str) -> str | None:
    if dtype not in FLOATS | INTEGERS:
        return f"{dtype} does not count"
    if dtype in INTEGERS and (isinstance(start, float) or isinstance(step, float)):
        return f"float start or step for {dtype}"
    return None


OPS: tuple[Op, ...] = (
    Op(
        "full", "creation", parameters("shape: sizes, value: number, dtype: dtype"), "Every element is value.",
        lambda shape, value, dtype: (tensor(dtype, shape),), (N1,), "full([2, 3], 0.0, dtype(float32)) -> f32[2, 3]",
    ),
    Op(
        "iota", "creation", parameters("length: size, start: number, step: number, dtype: dtype"),
        "Element i is start + i * step, computed in float64 (or int64) and converted.",
        lambda length, start, step, dtype: (tensor(dtype, (length,)),), (N2,),
        "iota(4, 0, 1, dtype(int64)) -> i64[4]",
    ),
)  # fmt: skip
