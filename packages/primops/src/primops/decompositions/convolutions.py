"""Convolutions on a CPU as products of matrices, where that is faster.

    rows of patches (windows, channels * kernel)  @  weight (channels * kernel, features)  ->  (windows, features)

ATen has kernels of oneDNN for convolutions. Before each call these bring weights into an order of their own, which
takes longer than the convolution itself where there are few windows; and images of few pixels fill their tiles badly.
A product reads the weights as they are. Measured on one core with AVX-512, in microseconds, forward + backward:

    512 -> 2048 features, 1x1, 8 images of 2x2      9808 + 23987      794 + 1792
    512 ->  512 features, 3x3, 1 image of 2x2       2883 +  4685      510 + 1184
    512 ->  512 features, 3x3, 8 images of 2x2      2464 + 16387     1981 + 4562
      3 ->  128 features, 8x8, step 8, 8 of 64x64    276 +  2510      255 +  507
    256 ->  256 features, 3x3, 8 images of 4x4      1145 +  3647     1780 + 3330      (left to ATen)
   2048 ->  512 features, 1x1, 8 of 2x2, bfloat16   1030 +  5472      381 +  787

Where a weight is infinite, the zeros of the padding make it nan. ATen does this too for one image (a kernel that copies
patches), and gives inf for several images or bfloat16 (a kernel that leaves the padding out).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from primops.builder import Builder, Value
from primops.decompositions.operands import Table, along, convert, opmath, permute, reshape
from primops.errors import Decline
from primops.prims.layouts import row_major
from stagewire.types import TensorType

FEW_PIXELS = 64
"""Up to so many places of an image, a 1x1 convolution is a product..."""
LARGE_WEIGHT = 1 << 17
"""...if it has so many weights, or if the image lies as its rows: else bringing it into rows takes what is gained."""
SOME_WEIGHT = 1 << 14
"""From so many weights on, bringing them into oneDNN's order takes longer than a call of ATen."""
FEW_WINDOWS, FEW_WINDOWS_BACKWARD = 32, 64
"""Up to so many windows in all images, any convolution is a product: forward, and backward."""
SMALL_PATCHES = 1 << 18
"""Up to so many elements, patches side by side are copied for a product; backward any number is."""
MOST_TAPS = 9
"""Windows of more elements stay with ATen, if they overlap: the sum over them is written out."""


class Window(NamedTuple):
    """A convolution without groups: sizes of the image and of the result, and for each dimension of these the kernel's
    size, step, padding and dilation."""

    batch: int
    channels: int
    features: int
    image: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    step: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many windows there are."""
        return self.batch * prod(self.out)

    @property
    def width(self) -> int:
        """How many elements a window has."""
        return self.channels * prod(self.kernel)

    @property
    def is_pointwise(self) -> bool:
        """Whether a window is one place of the image."""
        return not any(self.pad) and set(self.kernel) == {1}

    @property
    def is_patches(self) -> bool:
        """Whether windows of more than one place lie side by side."""
        return not any(self.pad) and self.kernel == self.step and set(self.dilation) == {1} != set(self.kernel)


def _window(
    x: Value, weight: Value, out: tuple[int, ...], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, groups: int,
) -> Window:  # fmt: skip
    """The sizes, where a product may compute the convolution at all."""
    if {x.device, weight.device} != {"cpu"} or x.dtype != weight.dtype or x.dtype not in ("float32", "bfloat16"):
        raise Decline("not on a CPU, or in a dtype that nobody measured")
    sizes = (*x.shape, *weight.shape, *out)
    if transposed or groups != 1 or x.rank not in (3, 4) or not all(isinstance(n, int) and n for n in sizes):
        raise Decline("groups, transposed, empty or of unknown sizes")
    rank = x.rank - 2
    each = [tuple(items) * rank if len(items) == 1 else tuple(items) for items in (stride, padding, dilation)]
    return Window(x.shape[0], x.shape[1], weight.shape[0], x.shape[2:], out[2:], weight.shape[2:], *each)  # type: ignore[arg-type]


def _refuse(window: Window, few: int, patches: int, in_rows: bool) -> None:
    """Decline where ATen is the faster one."""
    weights = window.width * window.features
    if window.is_pointwise and prod(window.out) <= FEW_PIXELS and (in_rows or weights >= LARGE_WEIGHT):
        return
    if window.is_patches and window.count * window.width <= patches:
        return
    if window.count > few or weights < SOME_WEIGHT or (prod(window.kernel) > MOST_TAPS and not window.is_patches):
        raise Decline("many windows, or large ones")


def _in_rows(x: Value) -> bool:
    """Whether the channels of an image are fastest, or it is of one place."""
    return x.type.stride[1] == 1 or prod(x.shape[2:]) == 1  # type: ignore[arg-type]


def convolution(
    p: Builder, x: Value, weight: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    window = _window(x, weight, p.out.shape, stride, padding, dilation, transposed, groups)  # type: ignore[arg-type]
    _refuse(window, FEW_WINDOWS, SMALL_PATCHES, _in_rows(x))
    rows, matrix = _patches(p, x, window), _transposed(p, _matrix(p, weight, window))
    if bias is not None and x.dtype != "float32":  # the sum with the bias is rounded once
        return _images(p, _product(p, rows, matrix, bias), window.features, window)
    result = _images(p, _product(p, rows, matrix), window.features, window)
    return result if bias is None else p.add(result, along(p, bias, result.shape, 1))


def convolution_backward(
    p: Builder, grad: Value, x: Value, weight: Value, bias_sizes: Sequence[int] | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    window = _window(x, weight, grad.shape, stride, padding, dilation, transposed, groups)  # type: ignore[arg-type]
    _refuse(window, FEW_WINDOWS_BACKWARD, window.count * window.width, _in_rows(x))
    last = (0, *range(2, grad.rank), 1)
    rows = reshape(p, permute(p, grad, last), (window.count, window.features))
    image = kernel = bias = None
    if output_mask[0]:
        image = _unpatched(p, _product(p, rows, _matrix(p, weight, window)), window)
    if output_mask[1]:
        kernel = reshape(p, _product(p, _transposed(p, rows), _patches(p, x, window)), weight.shape)
    if output_mask[2]:
        total = p.sum(convert(p, grad, opmath(grad.dtype)), (0, *range(2, grad.rank)))
        bias = convert(p, total, grad.dtype)
    return image, kernel, bias


def _product(p: Builder, a: Value, b: Value, added: Value | None = None) -> Value:
    shape = (a.shape[0], b.shape[1])
    target, args = ("aten.mm.default", (a, b)) if added is None else ("aten.addmm.default", (added, a, b))
    return p.extern(target, args, (TensorType(a.dtype, shape, row_major(shape), 0, a.device),))[0]  # type: ignore[return-value]


def _matrix(p: Builder, weight: Value, window: Window) -> Value:
    return reshape(p, weight, (window.features, window.width))


def _transposed(p: Builder, x: Value) -> Value:
    return permute(p, x, (1, 0))


def _patches(p: Builder, x: Value, window: Window) -> Value:
    """(windows, channels * kernel)."""
    rank = len(window.out)
    if any(window.pad):
        x = p.pad(x, (0, 0, *window.pad), (0, 0, *window.pad), 0.0)
    rows = row_major(x.shape)
    steps = [a * b for a, b in zip(window.step, rows[2:], strict=True)]
    inner = [a * b for a, b in zip(window.dilation, rows[2:], strict=True)]
    size = (window.batch, *window.out, window.channels, *window.kernel)
    if window.is_pointwise and set(window.step) == {1}:
        taken = permute(p, x, (0, *range(2, rank + 2), 1))
    else:
        taken = p.as_strided(x, size, (rows[0], *steps, rows[1], *inner), 0)
    return reshape(p, taken, (window.count, window.width))


def _images(p: Builder, rows: Value, channels: int, window: Window) -> Value:
    """(windows, channels) -> (batch, channels, ...)."""
    rank = len(window.out)
    return permute(p, reshape(p, rows, (window.batch, *window.out, channels)), (0, rank + 1, *range(1, rank + 1)))


def _unpatched(p: Builder, rows: Value, window: Window) -> Value:
    """The gradient of the image: each place receives what the windows that cover it hold of it."""
    rank = len(window.out)
    if window.is_pointwise and set(window.step) == {1}:
        return _images(p, rows, window.channels, window)
    cells = reshape(p, rows, (window.batch, *window.out, window.channels, *window.kernel))
    if window.is_patches:
        pairs = [d for n in range(rank) for d in (1 + n, 2 + rank + n)]
        covered = tuple(n * k for n, k in zip(window.out, window.kernel, strict=True))
        whole = reshape(p, permute(p, cells, (0, rank + 1, *pairs)), (window.batch, window.channels, *covered))
        return _widened(p, whole, (0,) * rank, window.image)
    cells = permute(p, cells, (0, rank + 1, *range(rank + 2, 2 * rank + 2), *range(1, rank + 1)))
    dtype, cells = cells.dtype, convert(p, cells, opmath(cells.dtype))
    padded = tuple(n + 2 * pad for n, pad in zip(window.image, window.pad, strict=True))
    total: Value | None = None
    for tap in _taps(window.kernel):
        start = (0, 0, *tap, *(0,) * rank)
        stop = (*cells.shape[:2], *(n + 1 for n in tap), *window.out)
        piece = reshape(p, p.slice(cells, start, stop, (1,) * cells.rank), (*cells.shape[:2], *window.out))
        low = tuple(n * d for n, d in zip(tap, window.dilation, strict=True))
        placed = _widened(p, _spaced(p, piece, window), low, padded)
        total = placed if total is None else p.add(total, placed)
    assert total is not None
    total = convert(p, total, dtype)
    if not any(window.pad):
        return total
    stop = (*total.shape[:2], *(pad + n for pad, n in zip(window.pad, window.image, strict=True)))
    return p.slice(total, (0, 0, *window.pad), stop, (1,) * total.rank)


def _taps(kernel: tuple[int, ...]) -> list[tuple[int, ...]]:
    taps: list[tuple[int, ...]] = [()]
    for size in kernel:
        taps = [(*tap, n) for tap in taps for n in range(size)]
    return taps


def _spaced(p: Builder, x: Value, window: Window) -> Value:
    """x with step - 1 zeros between neighbours."""
    if set(window.step) == {1}:
        return x
    batch, channels, *sizes = x.shape
    rank = len(sizes)
    cells = reshape(p, x, (batch, channels, *(d for n in sizes for d in (n, 1))))
    high = [d for step in window.step for d in (0, step - 1)]
    cells = p.pad(cells, (0,) * cells.rank, (0, 0, *high), 0.0)
    wide = [n * step for n, step in zip(sizes, window.step, strict=True)]
    x = reshape(p, cells, (batch, channels, *wide))
    stop = [n - step + 1 for n, step in zip(wide, window.step, strict=True)]
    return p.slice(x, (0,) * (rank + 2), (batch, channels, *stop), (1,) * (rank + 2))


def _widened(p: Builder, x: Value, low: tuple[int, ...], sizes: tuple[int, ...]) -> Value:
    """x at `low` of zeros of `sizes`."""
    high = tuple(size - n - start for size, n, start in zip(sizes, x.shape[2:], low, strict=True))  # type: ignore[operator]
    return p.pad(x, (0, 0, *low), (0, 0, *high), 0.0) if any((*low, *high)) else x


TABLE: Table = {
    "aten.convolution.default": convolution,
    "aten.convolution_backward.default": convolution_backward,
}
