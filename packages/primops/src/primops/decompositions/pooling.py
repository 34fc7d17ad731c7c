"""Average pooling as sums of slices, patches (im2col), and arguments of max pooling made complete."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from primops.builder import Builder, Value, opmath
from primops.decompositions.operands import Function, Table, by_name, literal_count
from primops.errors import Decline
from primops.prims.layouts import row_major
from stagewire.expr import Dim

MOST_TAPS = 25
"""Windows of more elements than this stay with ATen: the sum is written out."""


def avg_pool2d(
    p: Builder, x: Value, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Value:  # fmt: skip
    """The mean of each window; without the padding in the count where asked so."""
    kernel, step, pad = _window(2, kernel_size, stride, padding, 1, ceil_mode)[:3]
    out = p.out.shape[-2:]
    wide = _wide(p, x, x, out, kernel, step, pad, ceil_mode)
    if any(pad):
        widths = (*(0,) * (x.rank - 2), *pad)
        wide = p.pad(wide, widths, widths, 0.0)
    total = _window_sum(p, wide, out, kernel, step)
    return p.convert(_shared(p, total, x.shape, kernel, step, pad, count_include_pad, divisor_override), x.dtype)


def avg_pool2d_backward(
    p: Builder, grad: Value, x: Value, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Value:  # fmt: skip
    """Each element receives the shares of the windows that cover it: their gradients, spaced by the stride, summed."""
    kernel, step, pad = _window(2, kernel_size, stride, padding, 1, ceil_mode)[:3]
    out, lead = grad.shape[-2:], x.rank - 2
    wide = _wide(p, grad, x, out, kernel, step, pad, ceil_mode)
    share = _shared(p, wide, x.shape, kernel, step, pad, count_include_pad, divisor_override)
    low = (*(0,) * lead, kernel[0] - 1, kernel[1] - 1)
    reach = [_reach(x.shape[lead + i], out[i], kernel[i], step[i], pad[i]) for i in (0, 1)]
    wide = p.pad(spaced(p, share, step), low, (*(0,) * lead, *reach), 0.0)
    begin = p.slice(wide, (*(0,) * lead, *pad), wide.shape, (1,) * x.rank)
    return p.convert(_window_sum(p, begin, x.shape[-2:], kernel, (1, 1)), x.dtype)


def _reach(size: Dim, out: Dim, kernel: int, step: int, pad: int) -> int:
    """How many zeros the last elements need behind the spaced windows; of unknown sizes, how many they may need."""
    rest = pad + size - out * step
    return max(0, rest if isinstance(rest, int) else kernel - 1 - pad)


def _wide(
    p: Builder, value: Value, x: Value, out: Sequence[Dim], kernel: Sequence[int], step: Sequence[int],
    pad: Sequence[int], ceil_mode: bool,
) -> Value:  # fmt: skip
    """`value` in the dtype of the sums; declined where ATen computes windows over x."""
    inner = opmath(x.dtype)
    if inner not in ("float32", "float64") or kernel[0] * kernel[1] > MOST_TAPS:
        raise Decline(f"a window of {kernel} over {x.dtype}")
    if ceil_mode and not all(isinstance(n, int) for n in (*x.shape, *out)):
        raise Decline("symbolic sizes, rounded up")
    if ceil_mode and any((out[i] - 1) * step[i] + kernel[i] > x.shape[i - 2] + 2 * pad[i] for i in (0, 1)):  # type: ignore[operator]
        raise Decline("windows beyond the padding")
    return p.convert(value, inner)


def _shared(
    p: Builder, total: Value, sizes: Sequence[Dim], kernel: Sequence[int], step: Sequence[int], pad: Sequence[int],
    count_include_pad: bool, divisor_override: int | None,
) -> Value:  # fmt: skip
    """`total`, one element a window, divided by what the window counts."""
    if divisor_override is not None or count_include_pad or not any(pad):
        return p.div(total, float(divisor_override or kernel[0] * kernel[1]))
    shape, lead = total.shape, total.rank - 2
    counts = [_covered(p, shape[lead + i], sizes[lead + i], kernel[i], step[i], pad[i], total.dtype) for i in (0, 1)]
    return p.div(total, p.mul(p.along(counts[0], shape, lead), p.along(counts[1], shape, lead + 1)))


def spaced(p: Builder, x: Value, step: Sequence[int]) -> Value:
    """x with step - 1 zeros after every element of the last dimensions."""
    if set(step) == {1}:
        return x
    lead, sizes = x.shape[: -len(step)], x.shape[-len(step) :]
    cells = p.reshape(x, (*lead, *(d for n in sizes for d in (n, 1))))
    high = (*(0,) * len(lead), *(d for k in step for d in (0, k - 1)))
    cells = p.pad(cells, (0,) * cells.rank, high, 0.0)
    return p.reshape(cells, (*lead, *(n * k for n, k in zip(sizes, step, strict=True))))


def _window_sum(p: Builder, x: Value, out: Sequence[Dim], kernel: Sequence[int], step: Sequence[int]) -> Value:
    """The sum over the kernel's offsets of the strided slices that begin there."""
    lead = x.rank - 2
    total: Value | None = None
    for i, j in product(*map(range, kernel)):
        stop = (*x.shape[:lead], i + (out[0] - 1) * step[0] + 1, j + (out[1] - 1) * step[1] + 1)
        piece = p.slice(x, (*(0,) * lead, i, j), stop, (*(1,) * lead, *step))
        total = piece if total is None else p.add(total, piece)
    assert total is not None
    return total


def _covered(p: Builder, out: Dim, size: Dim, kernel: int, step: int, pad: int, dtype: str) -> Value:
    """How many elements of each window lie inside, along one dimension."""
    first = p.iota(out, -pad, step, "int64")
    return p.convert(p.sub(p.minimum(p.add(first, kernel), size), p.maximum(first, 0)), dtype)


def _cells(shape: Sequence[Dim], out: Sequence[Dim]) -> tuple[tuple[Dim, ...], int]:
    """`shape` cut into `out` equal cells along the last two dimensions, and the cells' size."""
    if not all(isinstance(n, int) for n in (*shape[-2:], *out)) or 0 in (*shape, *out):
        raise Decline("symbolic or empty sizes")
    if shape[-2] % out[0] or shape[-1] % out[1]:  # type: ignore[operator]
        raise Decline("cells of different sizes")
    height, width = shape[-2] // out[0], shape[-1] // out[1]  # type: ignore[operator]
    return (*shape[:-2], out[0], height, out[1], width), height * width  # type: ignore[return-value]


def adaptive_avg_pool2d(p: Builder, x: Value, output_size: Sequence[Dim]) -> Value:
    cells, count = _cells(x.shape, p.out.shape[-2:])
    inner, rank = opmath(x.dtype), len(cells)
    total = p.sum(p.reshape(p.convert(x, inner), cells), (rank - 3, rank - 1))
    return p.convert(p.div(total, float(count)), x.dtype)


def adaptive_avg_pool2d_backward(p: Builder, grad: Value, x: Value) -> Value:
    cells, count = _cells(x.shape, grad.shape[-2:])
    inner, rank = opmath(x.dtype), len(cells)
    share = p.div(p.convert(grad, inner), float(count))
    wide = p.broadcast_in_dim(share, cells, (*range(rank - 3), rank - 2))
    return p.convert(p.reshape(wide, x.shape), x.dtype)


def im2col(
    p: Builder, x: Value, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    stride: Sequence[int],
) -> Value:  # fmt: skip
    """Every window as a column: (N, C, H, W) -> (N, C * kernel, windows)."""
    if x.dtype == "bool":
        raise Decline("bool")
    kernel, spread, pad, step = (_each(sizes, 2) for sizes in (kernel_size, dilation, padding, stride))
    batched = x if x.rank == 4 else p.reshape(x, (1, *x.shape))
    if any(pad):
        batched = p.pad(batched, (0, 0, *pad), (0, 0, *pad), 0.0 if "float" in x.dtype else 0)
    literal_count(batched.shape, range(4))
    sizes = [(batched.shape[i + 2] - spread[i] * (kernel[i] - 1) - 1) // step[i] + 1 for i in (0, 1)]
    rows = row_major(batched.shape)
    size = (*batched.shape[:2], *kernel, *sizes)
    strides = (*rows[:2], spread[0] * rows[2], spread[1], step[0] * rows[2], step[1])
    return p.reshape(p.as_strided(batched, size, strides, 0), p.out.shape)


Sizes = Sequence[int] | int


def _each(value: Sizes, rank: int) -> tuple[int, ...]:
    items = (value,) if isinstance(value, int) else tuple(value)
    return items * rank if len(items) == 1 else items


def _window(
    rank: int, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool
) -> tuple[Any, ...]:
    """The arguments of a max pool, one a dimension."""
    size = _each(kernel, rank)
    return size, _each(stride, rank) or size, _each(padding, rank), _each(dilation, rank), bool(ceil_mode)


def max_pool(rank: int) -> Function:
    def decomposition(
        p: Builder, x: Value, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = 0, dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> tuple[Value, Value]:  # fmt: skip
        if ceil_mode and any(not isinstance(n, int) for n in x.shape[-rank:]):
            raise Decline("symbolic sizes: whether a window hangs over is a question about these")
        window = _window(rank, kernel_size, stride, padding, dilation, ceil_mode)
        return getattr(p, f"max_pool{rank}d")(x, *window)

    return decomposition


def max_pool_backward(rank: int) -> Function:
    return lambda p, grad, x, *rest: getattr(p, f"max_pool{rank}d_backward")(
        grad, x, *_window(rank, *rest[:5]), rest[5]
    )


TABLE: Table = {
    **by_name(avg_pool2d, avg_pool2d_backward, im2col),
    "aten._adaptive_avg_pool2d.default": adaptive_avg_pool2d,
    "aten._adaptive_avg_pool2d_backward.default": adaptive_avg_pool2d_backward,
    **{f"aten.max_pool{n}d_with_indices.default": max_pool(n) for n in (2, 3)},
    **{f"aten.max_pool{n}d_with_indices_backward.default": max_pool_backward(n) for n in (2, 3)},
}
