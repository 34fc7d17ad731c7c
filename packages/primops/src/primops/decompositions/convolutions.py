"""Convolutions as products of matrices, where `convolution_rules` say so; on a GPU the others without their biases.

    rows of patches (windows, channels * kernel)  @  weight (channels * kernel, features)  ->  (windows, features)

The gradients of both are products with rows of the result's gradient. A transposed convolution is the gradient of the
image, where what it is given is the result's.

    convolution(x, weight, bias)  =  convolution(x, weight) + bias        the gradient of the bias is a sum

cuDNN's convolutions have no bias: ATen adds it in a kernel behind them, which rounds as the addition does here, and
sums up its gradient in another. So both become prims, which join their neighbours. (On a CPU they are oneDNN's.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as taps
from typing import Any

from primops.builder import Builder, Value, opmath
from primops.decompositions import convolution_rules as rules
from primops.decompositions.operands import Table, first_of
from primops.decompositions.pooling import spaced
from primops.errors import Decline
from primops.prims.layouts import row_major
from stagewire.expr import Dim
from stagewire.types import NoneType, TensorType


def product(
    p: Builder, x: Value, weight: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    parts, whole = (x.shape, p.out.shape) if transposed else (p.out.shape, x.shape)
    window = rules.window_of(x, weight, whole, parts, stride, padding, dilation, groups)
    rules.refuse_forward(window, x, transposed, p.trains)
    matrix = p.reshape(weight, (window.features, window.width))
    if transposed:
        result = _unpatched(p, _product(p, _rows(p, x, window), matrix), window)
    else:
        added, bias = (None, bias) if x.dtype == "float32" else (bias, None)  # where that sum is rounded once
        rows = _product(p, _patches(p, x, window), p.permute(matrix, (1, 0)), added)
        result = _images(p, rows, window.features, window)
    return result if bias is None else _biased(p, result, bias)


def direct(
    p: Builder, x: Value, weight: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    """The sum over the few terms of each window; the padding lies in memory."""
    if transposed:
        raise Decline("a transposed convolution")
    rules.refuse_direct(x, weight, p.out, padding, groups, p.trains)
    rank = x.rank - 2
    step, pad, reach = (tuple(s) * rank if len(s) == 1 else tuple(s) for s in (stride, padding, dilation))
    image = p.permute(x, (0, *range(2, x.rank), 1))
    if any(pad):
        image = p.pad(image, (0, *pad, 0), (0, *pad, 0), 0.0)
    kernel = p.permute(weight, (*range(2, x.rank), 1, 0))
    if groups != 1:
        kernel = p.reshape(kernel, (*weight.shape[2:], groups))
    result = p.direct_conv(image, kernel, step, reach)
    if bias is not None:
        result = p.add(result, p.along(bias, result.shape, rank + 1))
    return p.permute(result, (0, rank + 1, *range(1, rank + 1)))


def product_backward(
    p: Builder, grad: Value, x: Value, weight: Value, bias_sizes: Sequence[int] | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    if transposed:
        raise Decline("the gradients of a transposed convolution")
    window = rules.window_of(x, weight, x.shape, grad.shape, stride, padding, dilation, groups)
    whole, rows = rules.is_image_a_product(window, x, output_mask[1]), _rows(p, grad, window)
    image = kernel = bias = None
    if output_mask[0] and whole:
        image = _unpatched(p, _product(p, rows, p.reshape(weight, (window.features, window.width))), window)
    elif output_mask[0]:
        args = (grad, x, weight, None, stride, padding, dilation, transposed, output_padding, groups)
        types = (p.out, NoneType(), NoneType())
        image, *_ = p.extern("aten.convolution_backward.default", (*args, (True, False, False)), types)
    if output_mask[1]:
        kernel = p.reshape(_product(p, p.permute(rows, (1, 0)), _patches(p, x, window)), weight.shape)
    if output_mask[2]:
        bias = _summed(p, grad)
    return image, kernel, bias


def biased_convolution(p: Builder, x: Value, weight: Value, bias: Value | None, *window: Any) -> Value:
    """ATen's convolution, and its bias as prims, on a GPU."""
    if bias is None or not x.device.startswith("cuda"):
        raise Decline("no bias, or one that the library of a CPU takes")
    (result,) = p.extern("aten.convolution.default", (x, weight, None, *window), (p.out,))
    assert result is not None
    return _biased(p, result, bias)


def biased_convolution_backward(
    p: Builder, grad: Value, x: Value, weight: Value, bias_sizes: Sequence[int] | None, *rest: Any
) -> tuple[Value | None, ...]:
    *window, output_mask = rest
    if not output_mask[2] or not x.device.startswith("cuda"):
        raise Decline("no gradient of a bias, or one that the library of a CPU computes")
    image = kernel = None
    if output_mask[0] or output_mask[1]:
        args = (grad, x, weight, None, *window, (output_mask[0], output_mask[1], False))
        image, kernel, _ = p.extern("aten.convolution_backward.default", args, (*p.results[:2], NoneType()))
    return image, kernel, _summed(p, grad)


def _biased(p: Builder, result: Value, bias: Value) -> Value:
    """The sum as ATen computes it."""
    wide = opmath(result.dtype)
    added = p.along(p.convert(bias, wide), result.shape, 1)
    return p.convert(p.add(p.convert(result, wide), added), result.dtype)


def _summed(p: Builder, grad: Value) -> Value:
    """The gradient of the bias."""
    total = p.sum(p.convert(grad, opmath(grad.dtype)), (0, *range(2, grad.rank)))
    return p.convert(total, grad.dtype)


def _product(p: Builder, a: Value, b: Value, added: Value | None = None) -> Value:
    shape = (a.shape[0], b.shape[1])
    target, args = ("aten.mm.default", (a, b)) if added is None else ("aten.addmm.default", (added, a, b))
    return p.extern(target, args, (TensorType(a.dtype, shape, row_major(shape), 0, a.device),))[0]  # type: ignore[return-value]


def _rows(p: Builder, x: Value, window: rules.Window) -> Value:
    """(windows, features)."""
    return p.reshape(p.permute(x, (0, *range(2, x.rank), 1)), (window.count, window.features))


def _patches(p: Builder, x: Value, window: rules.Window) -> Value:
    """(windows, channels * kernel)."""
    rank = len(window.out)
    if window.is_pointwise:
        stop = (window.batch, window.channels, *window.image)
        taken = p.slice(x, (0,) * (rank + 2), stop, (1, 1, *window.step)) if set(window.step) != {1} else x
        return p.reshape(p.permute(taken, (0, *range(2, rank + 2), 1)), (window.count, window.width))
    if window.is_patches:
        stop = (window.batch, window.channels, *_covered(window))
        taken = p.slice(x, (0,) * (rank + 2), stop, (1,) * (rank + 2)) if stop != x.shape else x
        pairs = [n for pair in zip(window.out, window.kernel, strict=True) for n in pair]
        cells = p.reshape(taken, (window.batch, window.channels, *pairs))
        order = (0, *range(2, 2 * rank + 2, 2), 1, *range(3, 2 * rank + 2, 2))
        return p.reshape(p.permute(cells, order), (window.count, window.width))
    if any(window.pad):
        x = p.pad(x, (0, 0, *window.pad), (0, 0, *window.pad), 0.0)
    rows = row_major(x.shape)
    steps = [a * b for a, b in zip(window.step, rows[2:], strict=True)]
    inner = [a * b for a, b in zip(window.dilation, rows[2:], strict=True)]
    size = (window.batch, *window.out, window.channels, *window.kernel)
    taken = p.as_strided(x, size, (rows[0], *steps, rows[1], *inner), 0)
    return p.reshape(taken, (window.count, window.width))


def _covered(window: rules.Window) -> tuple[Dim, ...]:
    """The part of the image that patches side by side cover."""
    return tuple(n * k for n, k in zip(window.out, window.kernel, strict=True))


def _images(p: Builder, rows: Value, channels: int, window: rules.Window) -> Value:
    """(windows, channels) -> (batch, channels, ...)."""
    rank = len(window.out)
    return p.permute(p.reshape(rows, (window.batch, *window.out, channels)), (0, rank + 1, *range(1, rank + 1)))


def _unpatched(p: Builder, rows: Value, window: rules.Window) -> Value:
    """The gradient of the image: each place receives what the windows that cover it hold of it."""
    rank = len(window.out)
    if window.is_pointwise and set(window.step) == {1}:
        return _images(p, rows, window.channels, window)
    cells = p.reshape(rows, (window.batch, *window.out, window.channels, *window.kernel))
    if window.is_patches:
        pairs = [d for n in range(rank) for d in (1 + n, 2 + rank + n)]
        whole = p.reshape(p.permute(cells, (0, rank + 1, *pairs)), (window.batch, window.channels, *_covered(window)))
        return _widened(p, whole, (0,) * rank, window.image)
    cells = p.permute(cells, (0, rank + 1, *range(rank + 2, 2 * rank + 2), *range(1, rank + 1)))
    dtype, cells = cells.dtype, p.convert(cells, opmath(cells.dtype))
    padded = tuple(n + 2 * pad for n, pad in zip(window.image, window.pad, strict=True))
    total: Value | None = None
    for tap in taps(*map(range, window.kernel)):
        start = (0, 0, *tap, *(0,) * rank)
        stop = (*cells.shape[:2], *(n + 1 for n in tap), *window.out)
        piece = p.reshape(p.slice(cells, start, stop, (1,) * cells.rank), (*cells.shape[:2], *window.out))
        low = tuple(n * d for n, d in zip(tap, window.dilation, strict=True))
        placed = _widened(p, _spaced(p, piece, window), low, padded)
        total = placed if total is None else p.add(total, placed)
    assert total is not None
    total = p.convert(total, dtype)
    if not any(window.pad):
        return total
    stop = (*total.shape[:2], *(pad + n for pad, n in zip(window.pad, window.image, strict=True)))
    return p.slice(total, (0, 0, *window.pad), stop, (1,) * total.rank)


def _spaced(p: Builder, x: Value, window: rules.Window) -> Value:
    """x with step - 1 zeros between neighbours."""
    if set(window.step) == {1}:
        return x
    wide = spaced(p, x, window.step)
    stop = [n - step + 1 for n, step in zip(wide.shape[2:], window.step, strict=True)]  # type: ignore[operator]
    return p.slice(wide, (0,) * wide.rank, (*x.shape[:2], *stop), (1,) * wide.rank)


def _widened(p: Builder, x: Value, low: tuple[int, ...], sizes: tuple[Dim, ...]) -> Value:
    """x at `low` of zeros of `sizes`."""
    high = tuple(size - n - start for size, n, start in zip(sizes, x.shape[2:], low, strict=True))  # type: ignore[operator]
    return p.pad(x, (0, 0, *low), (0, 0, *high), 0.0) if any((*low, *high)) else x


TABLE: Table = {
    "aten.convolution.default": first_of(direct, product, biased_convolution),
    "aten.convolution_backward.default": first_of(product_backward, biased_convolution_backward),
}
