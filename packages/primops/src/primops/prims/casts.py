"""Casts: the same elements in another dtype."""

from __future__ import annotations

from primops.prims.layouts import SUPPORTED, dense_stride, tensor
from stagewire.types import ITEM_SIZE, TensorType
from stagewire.vocabulary import Constraint, Op, parameters


def _cast(x: TensorType, dtype: str) -> tuple[TensorType, ...]:
    return (TensorType(dtype, x.shape, dense_stride(x.shape, x.stride), 0, x.device),)  # type: ignore[arg-type]


def _supported(x: TensorType, dtype: str) -> str | None:
    bad = [d for d in (x.dtype, dtype) if d not in SUPPORTED]
    return f"{bad[0]} is not supported" if bad else None


def _same_width(x: TensorType, dtype: str) -> str | None:
    if ITEM_SIZE.get(dtype) == ITEM_SIZE[x.dtype]:
        return None
    return f"{x.dtype} and {dtype} differ in width"


C1 = Constraint(
    "C1", "Both dtypes are supported.", _supported, ("convert_element_type", (tensor("float32", (2,)), "complex64"))
)
C2 = Constraint("C2", "Both dtypes have the same width.", _same_width, ("bitcast", (tensor("float32", (2,)), "int64")))

OPS: tuple[Op, ...] = (
    Op(
        "convert_element_type", "cast", parameters("x: tensor, dtype: dtype"),
        "Each element converted: floats round to nearest even, float to integer truncates, to bool tests != 0.",
        _cast, (C1,), "convert_element_type(x: f32[2, 3], dtype(bfloat16)) -> bf16[2, 3]",
    ),
    Op(
        "bitcast", "cast", parameters("x: tensor, dtype: dtype"),
        "The same bits read as another dtype of the same width.",
        _cast, (C1, C2), "bitcast(x: f32[2, 3], dtype(int32)) -> i32[2, 3]",
    ),
)  # fmt: skip
