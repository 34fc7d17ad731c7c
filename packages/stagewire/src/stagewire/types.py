"""What a value is: tensors, Python scalars, nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec

from stagewire.expr import Dim, Expr

DType = Literal[
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
    "uint16", "uint32", "uint64", "bool", "complex64", "complex128", "complex32",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
]  # fmt: skip
DTYPES: tuple[str, ...] = get_args(DType)

ITEM_SIZE: dict[str, int] = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1, "complex64": 8, "complex128": 16, "complex32": 4,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip


class TensorType(msgspec.Struct, frozen=True, tag="tensor", tag_field="kind"):
    """dtype, shape (elements), stride (elements), storage offset (elements), device ("cpu", "cuda:0").

    >>> str(TensorType("float32", (2, 3), (3, 1)))
    'f32[2, 3]'
    """

    dtype: DType
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    storage_offset: Dim = 0
    device: str = "cpu"
    requires_grad: bool = False

    @property
    def is_static(self) -> bool:
        """Whether sizes, strides and offset are numbers."""
        return not any(isinstance(dim, Expr) for dim in (*self.shape, *self.stride, self.storage_offset))


class ScalarType(msgspec.Struct, frozen=True, tag="scalar", tag_field="kind"):
    """A Python number that is a value of the graph (a symbol, or the result of a computation on symbols)."""

    type: Literal["int", "float", "bool", "complex"]


class NoneType(msgspec.Struct, frozen=True, tag="none", tag_field="kind"):
    """A result slot that holds None, such as an unwanted gradient of convolution_backward."""


ValueType = TensorType | ScalarType | NoneType


def contiguous_stride(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Row-major strides in elements; sizes of 0 count as 1, as torch does."""
    stride: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        stride.append(step)
        step = step * (size if not isinstance(size, int) else max(size, 1))
    return tuple(reversed(stride))


def channels_last_stride(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Strides of an image (batch, channels, height, width) whose channels lie next to each other.

    >>> channels_last_stride((2, 3, 4, 5))
    (60, 1, 15, 3)
    """
    _, channels, height, width = shape
    return channels * height * width, 1, width * channels, channels


def contiguous(dtype: DType, shape: tuple[Dim, ...], device: str = "cpu") -> TensorType:
    """A contiguous tensor type."""
    return TensorType(dtype, shape, contiguous_stride(shape), device=device)


def numel(shape: Sequence[Dim]) -> Dim:
    """The number of elements."""
    count: Dim = 1
    for size in shape:
        count = count * size
    return count


def bytes_of(type: TensorType) -> Dim:
    """How many bytes the elements take."""
    return numel(type.shape) * ITEM_SIZE[type.dtype]


def overlaps(shape: Sequence[Any], stride: Sequence[Any]) -> bool:
    """Whether several elements of a tensor may be one in memory.

    >>> overlaps((2, 3), (3, 1)), overlaps((2, 3), (0, 1)), overlaps((4, 3), (1, 1))
    (False, True, True)
    """
    if 0 in shape:
        return False
    reach = 0
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True) if size != 1):
        if step <= reach:
            return True
        reach += (size - 1) * step
    return False


def extent(type: TensorType) -> Dim:
    """`reach` of a type."""
    return reach(type.shape, type.stride)  # type: ignore[no-any-return]


def reach(shape: Sequence[Any], stride: Sequence[Any]) -> Any:
    """How many elements of memory a tensor reaches over, from its first to its last (some number where a symbolic size
    is 0).

    >>> reach((2, 3), (10, 1))
    13
    """
    return 0 if 0 in shape else 1 + sum([(size - 1) * step for size, step in zip(shape, stride, strict=True)])
