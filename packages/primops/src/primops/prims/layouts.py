"""Dtypes and strides that type rules need, as pure data."""

from __future__ import annotations

from functools import lru_cache

from stagewire.expr import Dim
from stagewire.types import TensorType, contiguous_stride

FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})
HALVES = frozenset({"float16", "bfloat16"})
INTEGERS = frozenset({"int64", "int32", "int16", "int8", "uint8"})
SUPPORTED = FLOATS | INTEGERS | {"bool"}
"""The dtypes of prims; an ATen call that touches any other dtype stays an extern."""

row_major = lru_cache(maxsize=8192)(contiguous_stride)


def tensor(dtype: str, shape: tuple[Dim, ...], device: str = "cpu") -> TensorType:
    """A row-major tensor type."""
    return TensorType(dtype, shape, row_major(shape), 0, device)  # type: ignore[arg-type]


@lru_cache(maxsize=8192)
def is_dense(shape: tuple[Dim, ...], stride: tuple[Dim, ...]) -> bool:
    """Whether some permutation of the dimensions is row-major without gaps or overlap."""
    if stride == row_major(shape):
        return True
    if any(not isinstance(step, int) for step in stride):
        return False
    if any(size == 0 for size in shape):
        return True
    expected: Dim = 1
    for size, step in sorted(((n, s) for n, s in zip(shape, stride, strict=True) if n != 1), key=lambda pair: pair[1]):
        if step != expected:
            return False
        expected = expected * size
    return True


def dense_stride(shape: tuple[Dim, ...], stride: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The strides of a fresh elementwise result: those of the operand when it is dense, else row-major."""
    return stride if is_dense(shape, stride) else row_major(shape)


def dense_like(x: TensorType, dtype: str | None = None) -> TensorType:
    """The type of a fresh elementwise result of one operand, in its dtype or in another one."""
    return TensorType(dtype or x.dtype, x.shape, dense_stride(x.shape, x.stride), 0, x.device)  # type: ignore[arg-type]


def same_layout(shape: tuple[Dim, ...], left: tuple[Dim, ...], right: tuple[Dim, ...]) -> bool:
    """Whether two strides place every element alike (strides of sizes 0 and 1 do not matter)."""
    if left == right:
        return True
    if any(size == 0 for size in shape):
        return True
    return all(size == 1 or a == b for size, a, b in zip(shape, left, right, strict=True))
