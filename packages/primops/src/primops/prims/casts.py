"""Casts: the same elements in another dtype."""

from __future__ import annotations

from primops.prims.layouts import SUPPORTED, dense_like, tensor
from stagewire.types import ITEM_SIZE, TensorType
from stagewire.vocabulary import Op, constraint, parameters

_F = tensor("float32", (2,))


def _cast(x: TensorType, dtype: str) -> tuple[TensorType, ...]:
    return (dense_like(x, dtype),)


@constraint("Both dtypes are supported.", ("convert_element_type", (_F, "complex64")))
def C1(x: TensorType, dtype: str) -> str | None:
    bad = [d for d in (x.dtype, dtype) if d not in SUPPORTED]
    return f"{bad[0]} is not supported" if bad else None


@constraint("Both dtypes have the same width.", ("bitcast", (_F, "int64")))
def C2(x: TensorType, dtype: str) -> str | None:
    return None if ITEM_SIZE.get(dtype) == ITEM_SIZE[x.dtype] else f"{x.dtype} and {dtype} differ in width"


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
