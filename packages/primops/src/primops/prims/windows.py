"""Windows: max pooling with strides, overlap and padding, forward and backward (large windows are calls of ATen), and
convolutions of images whose channels are their last dimension."""

from __future__ import annotations

from typing import Any

from primops.prims.layouts import FLOATS, INTEGERS, dense_like, tensor
from stagewire.expr import Dim
from stagewire.types import TensorType
from stagewire.vocabulary import Op, constraint, of_dtypes, parameters

Sizes = tuple[int, ...]
_X = tensor("float32", (1, 2, 8, 8))
_G = tensor("float32", (1, 2, 4, 4))
_P = tensor("int64", (1, 2, 4, 4))
_WINDOWS = ((2, 2), (2, 2), (0, 0), (1, 1), False)


# --- rules ---------------------------------------------------------------------------------------------------------


def pooled_size(size: int, window: int, step: int, pad: int, dilation: int, ceil_mode: bool) -> int:
    """How many windows fit along one dimension; with ceil_mode also one that hangs over, if it starts inside."""
    extent = size + 2 * pad - dilation * (window - 1) - 1
    count = (extent + (step - 1 if ceil_mode else 0)) // step + 1
    return count - 1 if ceil_mode and (count - 1) * step >= size + pad else count


def pooled_shape(
    x: TensorType, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool
) -> tuple[Dim, ...]:
    """The shape of a pooled tensor; the last dimensions have windows."""
    rank = len(kernel)
    spatial = zip(x.shape[-rank:], kernel, stride, padding, dilation, strict=True)
    return (*x.shape[:-rank], *(pooled_size(*window, ceil_mode) for window in spatial))  # type: ignore[arg-type]


def _max_pool(
    x: TensorType, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool
) -> tuple[TensorType, ...]:
    shape = pooled_shape(x, kernel, stride, padding, dilation, ceil_mode)
    return tensor(x.dtype, shape, x.device), tensor("int64", shape, x.device)


def _convolved(x: TensorType, weight: TensorType, stride: Sizes, dilation: Sizes) -> tuple[TensorType, ...]:
    sides = zip(x.shape[1:-1], weight.shape, stride, dilation, strict=False)
    sizes = [(size - reach * (window - 1) - 1) // step + 1 for size, window, step, reach in sides]  # type: ignore[operator]
    return (tensor(x.dtype, (x.shape[0], *sizes, weight.shape[-1]), x.device),)


# --- constraints ---------------------------------------------------------------------------------------------------


@constraint(
    "Windows, strides, padding and dilation have one entry for each spatial dimension, of which the operand has two "
    "less, or one less, than dimensions.", ("max_pool2d", (_X, (2,), (2,), (0,), (1,), False)),
)  # fmt: skip
def W1(x: TensorType, kernel: Sizes, *sizes: object) -> str | None:
    rank = len(kernel)
    if len(x.shape) not in (rank + 1, rank + 2):
        return f"windows of rank {rank} over rank {len(x.shape)}"
    if any(isinstance(s, tuple) and len(s) != rank for s in sizes):
        return f"a window, stride, padding or dilation has no {rank} entries"
    return None


@constraint(
    "Padding is at most half of the window; windows and strides are positive.",
    ("max_pool2d", (_X, (2, 2), (2, 2), (2, 2), (1, 1), False)),
)
def W2(x: TensorType, kernel: Sizes, stride: Sizes, padding: Sizes, *_: object) -> str | None:
    if any(2 * pad > window for pad, window in zip(padding, kernel, strict=True)):
        return f"padding {list(padding)} is more than half of the window {list(kernel)}"
    return "a window or stride is not positive" if min((*kernel, *stride)) < 1 else None


@constraint(
    "The gradient has the operand's dtype, a float, and the shape of what was pooled.",
    ("max_pool2d_backward", (tensor("float64", (1, 2, 4, 4)), _X, *_WINDOWS, _P)),
)
def W3(grad: TensorType, x: TensorType, kernel: Sizes, *window: Any) -> str | None:
    known = all(isinstance(size, int) for size in x.shape)
    shape = pooled_shape(x, kernel, *window[:-1]) if known else grad.shape
    if grad.dtype != x.dtype or x.dtype not in FLOATS or grad.shape != shape or 0 in shape[-len(kernel) :]:
        return f"the gradient is {grad.dtype}{list(grad.shape)} for {x.dtype}{list(x.shape)} pooled to {list(shape)}"
    return None


@constraint(
    "The indices are int64, in the shape of what was pooled.",
    ("max_pool2d_backward", (_G, _X, *_WINDOWS, tensor("int64", (1, 2, 4, 5)))),
)
def W4(grad: TensorType, x: TensorType, *rest: object) -> str | None:
    indices = rest[-1]
    if isinstance(indices, TensorType) and (indices.dtype != "int64" or indices.shape != grad.shape):
        return f"the indices are {indices.dtype}{list(indices.shape)} for {list(grad.shape)}"
    return None


W5 = of_dtypes(
    "W5", FLOATS | INTEGERS, "The operand is an integer or float.",
    ("max_pool2d", (tensor("bool", (1, 2, 8, 8)), *_WINDOWS)),
)  # fmt: skip


@constraint(
    "Each spatial dimension has room for a window.", ("max_pool2d", (tensor("float32", (1, 2, 1, 8)), *_WINDOWS))
)
def W6(x: TensorType, kernel: Sizes, *window: Any) -> str | None:
    if not all(isinstance(size, int) for size in x.shape):
        return None
    shape = pooled_shape(x, kernel, *window)[-len(kernel) :]
    return None if all(size > 0 for size in shape) else f"windows of {list(kernel)} on {list(x.shape)}"  # type: ignore[operator]


_N, _K = tensor("float32", (1, 5, 5, 8)), tensor("float32", (3, 3, 8))


@constraint(
    "The weight is of the operand's float dtype: sizes for the spatial dimensions, the operand's channels unless each "
    "makes one of the result, and the result's. Its sizes, stride and dilation are positive numbers.",
    ("direct_conv", (_N, _K, (1,), (1, 1))),
)  # fmt: skip
def W7(x: TensorType, weight: TensorType, stride: Sizes, dilation: Sizes) -> str | None:
    rank = len(x.shape) - 2
    if x.dtype not in FLOATS or weight.dtype != x.dtype or rank < 1 or x.shape[-1:] != weight.shape[rank : rank + 1]:
        return f"{weight.dtype}{list(weight.shape)} for {x.dtype}{list(x.shape)}"
    if len(weight.shape) > rank + 2 or {len(stride), len(dilation)} != {rank}:
        return f"{list(weight.shape)}, strides {list(stride)}, dilations {list(dilation)} for rank {rank}"
    known = all(isinstance(n, int) and n > 0 for n in (*weight.shape, *stride, *dilation))
    return None if known else "a size is no positive number"


@constraint(
    "Each spatial dimension has room for a window.",
    ("direct_conv", (tensor("float32", (1, 2, 5, 8)), _K, (1, 1), (1, 1))),
)
def W8(x: TensorType, weight: TensorType, stride: Sizes, dilation: Sizes) -> str | None:
    (made,) = _convolved(x, weight, stride, dilation)
    fits = all(n > 0 for n in made.shape[1:-1] if isinstance(n, int))
    return None if fits else f"windows on {list(x.shape)}"  # type: ignore[operator]


_WINDOW = "kernel: dims, stride: dims, padding: dims, dilation: dims, ceil_mode: bool"


def _of_rank(n: int) -> tuple[Op, ...]:
    x, out, places = (f"{kind}[1, 2{f', {size}' * n}]" for kind, size in (("f32", 8), ("f32", 4), ("i64", 4)))
    window = ", ".join(str([value] * n) for value in (2, 2, 0, 1))
    return (
        Op(
            f"max_pool{n}d", "windows", parameters(f"x: tensor, {_WINDOW}"),
            "The greatest element of each window (nan if one is nan) and its row-major place among the spatial "
            "dimensions.", _max_pool, (W5, W1, W2, W6),
            f"max_pool{n}d(x: {x}, {window}, False) -> {out}, {places}", ("values", "indices"), keeps_layout=True,
        ),
        Op(
            f"max_pool{n}d_backward", "windows", parameters(f"grad: tensor, x: tensor, {_WINDOW}, indices: tensor"),
            "The gradient of each window, added up at the places that max_pool chose.",
            lambda grad, x, *_: (dense_like(x),), (W3, W4),
            f"max_pool{n}d_backward(grad: {out}, x: {x}, {window}, False, indices: {places}) -> {x}",
            keeps_layout=True,
        ),
    )  # fmt: skip


OPS: tuple[Op, ...] = (
    *_of_rank(2),
    *_of_rank(3),
    Op(
        "direct_conv", "windows", parameters("x: tensor, weight: tensor, stride: dims, dilation: dims"),
        "The sum of the elements of each window, each times the weight at its place. Channels are the last dimension: "
        "a weight without those of the operand is for each of them by itself.", _convolved, (W7, W8),
        "direct_conv(x: f32[1, 5, 5, 8], weight: f32[3, 3, 8], [1, 1], [1, 1]) -> f32[1, 3, 3, 8]",
    ),
)  # fmt: skip
