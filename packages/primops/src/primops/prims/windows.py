"""Windows: pooling with strides, overlap and padding, forward and backward, where index arithmetic does not do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from primops.prims.layouts import FLOATS, INTEGERS, dense_stride, tensor
from primops.prims.record import Call, Constraint, Record, parameters
from stagewire.expr import Dim
from stagewire.types import TensorType

Sizes = tuple[int, ...]
_X = tensor("float32", (1, 2, 8, 8))
_G = tensor("float32", (1, 2, 4, 4))
_P = tensor("int64", (1, 2, 4, 4))


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


def _avg_pool(
    x: TensorType, kernel: Sizes, stride: Sizes, padding: Sizes, ceil_mode: bool, *_: object
) -> tuple[TensorType, ...]:
    return (tensor(x.dtype, pooled_shape(x, kernel, stride, padding, (1,) * len(kernel), ceil_mode), x.device),)


def _resized(x: TensorType, size: Sequence[Dim]) -> tuple[Dim, ...]:
    return (*x.shape[: -len(size)], *size)


def _adaptive_avg(x: TensorType, size: tuple[Dim, ...]) -> tuple[TensorType, ...]:
    return (tensor(x.dtype, _resized(x, size), x.device),)


def _adaptive_max(x: TensorType, size: tuple[Dim, ...]) -> tuple[TensorType, ...]:
    shape = _resized(x, size)
    return tensor(x.dtype, shape, x.device), tensor("int64", shape, x.device)


def _fractional(x: TensorType, kernel: Sizes, size: Sizes, samples: TensorType) -> tuple[TensorType, ...]:
    return _adaptive_max(x, size)


def _unpooled(x: TensorType, indices: TensorType, size: tuple[Dim, ...], *_: object) -> tuple[TensorType, ...]:
    return (tensor(x.dtype, _resized(x, size), x.device),)


def _like_second(grad: TensorType, x: TensorType, *_: object) -> tuple[TensorType, ...]:
    return (TensorType(x.dtype, x.shape, dense_stride(x.shape, x.stride), 0, x.device),)


def _image(x: TensorType, size: tuple[Dim, ...], kernel: Sizes, *_: object) -> tuple[TensorType, ...]:
    return (tensor(x.dtype, (*x.shape[:-2], x.shape[-2] // (kernel[0] * kernel[1]), *size), x.device),)


# --- constraints ---------------------------------------------------------------------------------------------------


def _spatial(x: TensorType, kernel: Sizes, *sizes: object) -> str | None:
    rank = len(kernel)
    if len(x.shape) not in (rank + 1, rank + 2):
        return f"windows of rank {rank} over rank {len(x.shape)}"
    if any(isinstance(s, tuple) and len(s) != rank for s in sizes):
        return f"a window, stride, padding or dilation has no {rank} entries"
    return None


def _fits(x: TensorType, kernel: Sizes, stride: Sizes, padding: Sizes, *_: object) -> str | None:
    if any(2 * pad > window for pad, window in zip(padding, kernel, strict=True)):
        return f"padding {list(padding)} is more than half of the window {list(kernel)}"
    return "a window or stride is not positive" if min((*kernel, *stride)) < 1 else None


def _resizable(x: TensorType, size: Sequence[Dim], *_: object) -> str | None:
    rank = len(size)
    return None if len(x.shape) in (rank + 1, rank + 2) else f"{rank} sizes for rank {len(x.shape)}"


def _backward_rank(grad: TensorType, x: TensorType, *_: object) -> str | None:
    if len(grad.shape) != len(x.shape) or grad.dtype != x.dtype:
        return f"the gradient is {grad.dtype}{list(grad.shape)} for {x.dtype}{list(x.shape)}"
    return None


def _positions(grad: TensorType, x: TensorType, *rest: object) -> str | None:
    indices = rest[-1]
    if isinstance(indices, TensorType) and (indices.dtype != "int64" or indices.shape != grad.shape):
        return f"the indices are {indices.dtype}{list(indices.shape)} for {list(grad.shape)}"
    return None


def _unpool_positions(x: TensorType, indices: TensorType, *_: object) -> str | None:
    return _positions(x, x, indices)


def _numbers(x: TensorType, *_: object) -> str | None:
    return None if x.dtype in FLOATS | INTEGERS else f"{x.dtype} is not pooled"


def _columns(x: TensorType, size: Sequence[Dim], kernel: Sizes, *_: object) -> str | None:
    window = kernel[0] * kernel[1]
    if len(x.shape) in (2, 3) and (type(x.shape[-2]) is not int or x.shape[-2] % window == 0):
        return None
    return f"columns {list(x.shape)} of windows {list(kernel)}"


W1 = Constraint(
    "W1", "Windows, strides, padding and dilation have one entry for each spatial dimension, of which the operand has "
    "two less, or one less, than dimensions.", _spatial, ("max_pool2d", (_X, (2,), (2,), (0,), (1,), False)),
)  # fmt: skip
W2 = Constraint(
    "W2", "Padding is at most half of the window; windows and strides are positive.", _fits,
    ("max_pool2d", (_X, (2, 2), (2, 2), (2, 2), (1, 1), False)),
)  # fmt: skip
W3 = Constraint(
    "W3", "There are as many sizes as spatial dimensions.", _resizable, ("adaptive_avg_pool2d", (_X, (2,)))
)  # fmt: skip
W4 = Constraint(
    "W4", "The gradient has the operand's dtype and rank.", _backward_rank,
    ("adaptive_avg_pool2d_backward", (tensor("float64", (1, 2, 4, 4)), _X)),
)  # fmt: skip
W5 = Constraint(
    "W5", "The indices are int64, in the shape of what was pooled.", _positions,
    ("adaptive_max_pool2d_backward", (_G, _X, tensor("int64", (1, 2, 4, 5)))),
)  # fmt: skip
W6 = Constraint(
    "W6", "The indices are int64, in the shape of the operand.", _unpool_positions,
    ("max_unpool2d", (_G, tensor("int64", (1, 2, 4, 5)), (8, 8))),
)  # fmt: skip
W7 = Constraint(
    "W7", "The operand is an integer or float.", _numbers,
    ("max_pool2d", (tensor("bool", (1, 2, 8, 8)), (2, 2), (2, 2), (0, 0), (1, 1), False)), FLOATS | INTEGERS,
)  # fmt: skip

W8 = Constraint(
    "W8", "The columns are a matrix, or a batch of them, of whole windows.", _columns,
    ("col2im", (tensor("float32", (1, 7, 9)), (4, 4), (2, 2), (1, 1), (0, 0), (1, 1))),
)  # fmt: skip

_WINDOW = "kernel: dims, stride: dims, padding: dims"
_MAX = ("values", "indices")


def _record(
    name: str, text: str, doc: str, rule: Callable[..., tuple[TensorType, ...]], constraints: tuple[Constraint, ...],
    example: str, target: str, results: tuple[str, ...] = ("out",),
) -> Record:  # fmt: skip
    return Record(name, "windows", parameters(text), doc, rule, constraints, f"{name}({example}", results, Call(target))


def _shape(rank: int, size: int) -> str:
    return f"f32[1, 2{f', {size}' * rank}]"


def _list(rank: int, value: int) -> str:
    return f"[{', '.join([str(value)] * rank)}]"


def _of_rank(n: int) -> tuple[Record, ...]:
    x, out, window = _shape(n, 8), _shape(n, 4), f"{_list(n, 2)}, {_list(n, 2)}, {_list(n, 0)}"
    both = f"{out}, {out.replace('f32', 'i64')}"
    numbers = "ceil_mode: bool, count_include_pad: bool, divisor: int?"
    return (
        _record(f"max_pool{n}d", f"x: tensor, {_WINDOW}, dilation: dims, ceil_mode: bool",
                "The greatest element of each window (nan if one is nan) and its row-major place among the spatial "
                "dimensions.", _max_pool, (W7, W1, W2), f"x: {x}, {window}, {_list(n, 1)}, false) -> {both}",
                f"aten.max_pool{n}d_with_indices.default", _MAX),
        _record(f"max_pool{n}d_backward",
                f"grad: tensor, x: tensor, {_WINDOW}, dilation: dims, ceil_mode: bool, indices: tensor",
                "The gradient of each window, added up at the places that max_pool chose.", _like_second, (W4, W5),
                f"grad: {out}, x: {x}, {window}, {_list(n, 1)}, false, indices: {out.replace('f32', 'i64')}) -> {x}",
                f"aten.max_pool{n}d_with_indices_backward.default"),
        _record(f"avg_pool{n}d", f"x: tensor, {_WINDOW}, {numbers}",
                "The sum of each window over its size (over divisor; over what lies inside of the operand if padding "
                "is not counted).", _avg_pool, (W7, W1, W2), f"x: {x}, {window}, false, true, null) -> {out}",
                f"aten.avg_pool{n}d.default"),
        _record(f"avg_pool{n}d_backward", f"grad: tensor, x: tensor, {_WINDOW}, {numbers}",
                "The gradient of each window, spread over its elements.", _like_second, (W4,),
                f"grad: {out}, x: {x}, {window}, false, true, null) -> {x}", f"aten.avg_pool{n}d_backward.default"),
        _record(f"adaptive_avg_pool{n}d", "x: tensor, size: sizes",
                "The mean of each of size cells; neighbouring cells may share elements.", _adaptive_avg, (W3,),
                f"x: {x}, {_list(n, 4)}) -> {out}", f"aten._adaptive_avg_pool{n}d.default"),
        _record(f"adaptive_avg_pool{n}d_backward", "grad: tensor, x: tensor",
                "The gradient of each cell, spread over its elements.", _like_second, (W4,),
                f"grad: {out}, x: {x}) -> {x}", f"aten._adaptive_avg_pool{n}d_backward.default"),
        _record(f"adaptive_max_pool{n}d", "x: tensor, size: dims",
                "The greatest element of each of size cells and its place, as for max_pool.", _adaptive_max, (W3,),
                f"x: {x}, {_list(n, 4)}) -> {both}", f"aten.adaptive_max_pool{n}d.default", _MAX),
        _record(f"adaptive_max_pool{n}d_backward", "grad: tensor, x: tensor, indices: tensor",
                "The gradient of each cell, added up at the places chosen.", _like_second, (W4, W5),
                f"grad: {out}, x: {x}, indices: {out.replace('f32', 'i64')}) -> {x}",
                f"aten.adaptive_max_pool{n}d_backward.default"),
        _record(f"fractional_max_pool{n}d", "x: tensor, kernel: dims, size: dims, samples: tensor",
                "The greatest element of windows at pseudo-random steps, which the samples in 0..1 decide.",
                _fractional, (W1,), f"x: {x}, {_list(n, 2)}, {_list(n, 4)}, samples: f32[1, 2, {n}]) -> {both}",
                f"aten.fractional_max_pool{n}d.default", _MAX),
        _record(f"fractional_max_pool{n}d_backward",
                "grad: tensor, x: tensor, kernel: dims, size: dims, indices: tensor",
                "The gradient of each window, added up at the places chosen.", _like_second, (W4, W5),
                f"grad: {out}, x: {x}, {_list(n, 2)}, {_list(n, 4)}, indices: {out.replace('f32', 'i64')}) -> {x}",
                f"aten.fractional_max_pool{n}d_backward.default"),
    )  # fmt: skip


RECORDS: tuple[Record, ...] = (
    _record("col2im", "x: tensor, size: sizes, kernel: dims, dilation: dims, padding: dims, stride: dims",
            "An image of this size, to which each column adds its window: the gradient of taking patches.", _image,
            (W8,), "x: f32[1, 8, 9], [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]) -> f32[1, 2, 4, 4]",
            "aten.col2im.default"),
    *_of_rank(2),
    *_of_rank(3),
    _record("max_unpool2d", "x: tensor, indices: tensor, size: sizes",
            "Zeros of this size, with the elements at the places that max_pool chose.", _unpooled, (W6,),
            "x: f32[1, 2, 4, 4], indices: i64[1, 2, 4, 4], [8, 8]) -> f32[1, 2, 8, 8]", "aten.max_unpool2d.default"),
    _record("max_unpool3d", "x: tensor, indices: tensor, size: sizes, stride: dims, padding: dims",
            "Zeros of this size, with the elements at the places that max_pool chose.", _unpooled, (W6,),
            "x: f32[1, 2, 4, 4, 4], indices: i64[1, 2, 4, 4, 4], [8, 8, 8], [2, 2, 2], [0, 0, 0]) -> "
            "f32[1, 2, 8, 8, 8]", "aten.max_unpool3d.default"),
)  # fmt: skip
