"""numpy functions for a few externs of ATen, for `loopir.interpret` and `loopir.testing.prim_meaning`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from loopir.numpy_ops import Array


def _sort(x: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    order = np.argsort(-x if descending else x, axis=dim, kind="stable")
    return np.take_along_axis(x, order, dim), order


def accumulated(combine: np.ufunc, x: Array, dim: int, dtype: Any = None) -> Array:
    """Each element combined with those before it along a dimension."""
    return combine.accumulate(x, dim, dtype) if x.ndim else np.asarray(x, dtype)


def running(pick: Callable[..., Any], x: Array, dim: int) -> tuple[Array, Array]:
    """The running extreme along a dimension and where it was last met, one point after the other."""
    rows = np.moveaxis(x, dim, -1) if x.ndim else x.reshape(1)
    best, at = rows.copy(), np.zeros(rows.shape, np.int64)
    for n in range(1, rows.shape[-1]):
        best[..., n] = pick(best[..., n - 1], rows[..., n])
        is_new = (rows[..., n] == best[..., n]) | (rows[..., n] != rows[..., n])
        at[..., n] = np.where(is_new, n, at[..., n - 1])
    return (np.moveaxis(best, -1, dim), np.moveaxis(at, -1, dim)) if x.ndim else (best.reshape(()), at.reshape(()))


def windows(size: int, window: int, step: int, pad: int, dilation: int, ceil: bool) -> int:
    """How many windows there are along a dimension."""
    last = size + 2 * pad - dilation * (window - 1) - 1
    if last < 0:
        return 0
    count = -(-last // step) + 1 if ceil else last // step + 1
    return count - (ceil and (count - 1) * step >= size + pad)


def max_pool(
    x: Array, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil: bool = False,
) -> tuple[Array, Array]:  # fmt: skip
    """Of each window the greatest element (the last nan, else the first of equals) and its position in the plane."""
    sides, lead = x.shape[-len(kernel) :], x.ndim - len(kernel)
    pooled = zip(sides, kernel, stride, padding, dilation, strict=True)
    shape = (*x.shape[:lead], *(windows(*side, ceil) for side in pooled))
    best, at, is_first = np.zeros(shape, x.dtype), np.zeros(shape, np.int64), np.ones(shape, bool)
    at_window = np.indices(shape)
    for tap in np.ndindex(*kernel):
        place = [at_window[lead + d] * stride[d] - padding[d] + tap[d] * dilation[d] for d in range(len(kernel))]
        inside = np.all([(p >= 0) & (p < size) for p, size in zip(place, sides, strict=True)], axis=0)
        place = [np.where(inside, p, 0) for p in place]
        one = x[(*at_window[:lead], *place)]
        better = inside & (is_first | (one > best) | (one != one))
        best, at = np.where(better, one, best), np.where(better, np.ravel_multi_index(place, sides), at)
        is_first &= ~inside
    return best, at


def max_pool_backward(grad: Array, x: Array, rank: int, indices: Array) -> Array:
    """Each gradient added where its window has its greatest element."""
    lead = x.shape[:-rank]
    found = np.zeros((*lead, int(np.prod(x.shape[-rank:]))), np.float64)
    planes = np.indices(grad.shape)[: len(lead)]
    np.add.at(found, (*planes, indices), grad)
    return found.reshape(x.shape)


def _max_pool_backward(grad: Array, x: Array, kernel: Sequence[int], *others: Any) -> Array:
    return max_pool_backward(grad, x, len(kernel), others[-1])


def _convolution(
    x: Array, weight: Array, bias: Array | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Array:  # fmt: skip
    """Of images, without dilation."""
    padded = np.pad(x, [(0, 0), (0, 0), *((n, n) for n in padding)])
    places = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], (2, 3))
    places = places[:, :, :: stride[0], :: stride[1]]
    places = places.reshape(len(x), groups, -1, *places.shape[2:])
    made = np.einsum("ngchwij,gocij->ngohw", places, weight.reshape(groups, -1, *weight.shape[1:]))
    return made.reshape(len(x), len(weight), *made.shape[3:])


EXTERNS: dict[str, Callable[..., Any]] = {
    "aten.add.Tensor": lambda a, b, alpha=1: a + alpha * b,
    "aten.mm.default": lambda a, b: a @ b,
    "aten.bmm.default": lambda a, b: a @ b,
    "aten.addmm.default": lambda c, a, b: c + a @ b,
    "aten.sort.default": _sort,
    "aten.convolution.default": _convolution,
    **{f"aten.max_pool{n}d_with_indices.default": max_pool for n in (2, 3)},
    **{f"aten.max_pool{n}d_with_indices_backward.default": _max_pool_backward for n in (2, 3)},
    "stagefold.philox_state.default": lambda count, device: (np.array(5), np.array(8)),
    "aten.cummax.default": partial(running, np.maximum),
    "aten.cummin.default": partial(running, np.minimum),
    "aten.logcumsumexp.default": partial(accumulated, np.logaddexp),
    "aten.cumsum.default": partial(accumulated, np.add),
    "aten.cumprod.default": partial(accumulated, np.multiply),
}
