"""Where a product of matrices, or loops, compute a convolution better than ATen's kernels of convolutions.

CPU. Before each call oneDNN brings weights into an order of its own, which takes longer than the convolution itself
where there are few windows; images of few pixels fill its tiles badly. A product reads the weights as they are. In
inference, convolutions of few terms are loops where images have their channels fastest: depthwise ones, and the first
one of a network.

GPU. cuDNN brings images of patches side by side into another order, in memory that it holds while it runs. For a
product, the kernel before it writes patches as rows. A transposed convolution that puts patches side by side is a
product in inference, images having their channels fastest. The gradient of a 1x1 kernel cuDNN computes for each image
apart where images have an odd number of places and their channels grow. Convolutions of single channels stay calls,
for which codegen has kernels of its own.

Where a weight is infinite, the zeros of the padding make it nan; ATen does this too for one image, and gives inf for
several. What was measured of each: `docs/performance.md`, "Convolutions as products and loops".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from primops.builder import Value
from primops.errors import Decline
from stagewire.expr import Dim
from stagewire.types import TensorType, numel

DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("bfloat16", "float16")}
"""Those in which it was measured; on a GPU, flags of torch let convolutions round float32 and products not."""

RANKS = {"cpu": (3, 4), "cuda": (3, 4, 5)}

SUMMED_APART = 1 << 19
"""Up to so many weights of a 1x1 kernel, cuDNN sums its gradients of all images at the end."""
FEW_PIXELS = 64
"""Up to so many places of an image, a 1x1 convolution is a product (of those of a GPU, some gradients)..."""
LARGE_WEIGHT = 1 << 17
"""...if it has so many weights, or if the image lies as its rows: else bringing it into rows takes what is gained."""
FEW_ELEMENTS = 1 << 20
"""Up to so many elements of the result, a 1x1 convolution of rows is a product in inference."""
SOME_WEIGHT = 1 << 14
"""From so many weights on, bringing them into oneDNN's order takes longer than a call of ATen."""
FEW_WINDOWS, FEW_WINDOWS_BACKWARD = 32, 64
"""Up to so many windows in all images, any convolution is a product: forward, and backward."""
SMALL_PATCHES = 1 << 20
"""Up to so many elements, patches side by side are copied for a product; backward any number is."""
MOST_TAPS = 9
"""Windows of more elements stay with ATen, if they overlap: the sum over them is written out."""
MOST_TERMS = 49
"""Windows of more elements that are summed stay with ATen: the sum is written out."""
MANY_CHANNELS, FEW_TERMS = 16, 9
"""Fewer channels do not fill the lanes, which pays for windows of few elements alone..."""
LARGEST_IMAGE = 1 << 19
"""...and so much of a depthwise convolution's images is padded in the cache; half of it for other windows."""


class Window(NamedTuple):
    """A convolution without groups: sizes of the image and of the result, and for each dimension of these the kernel's
    size, step, padding and dilation."""

    batch: Dim
    channels: int
    features: int
    image: tuple[Dim, ...]
    out: tuple[Dim, ...]
    kernel: tuple[int, ...]
    step: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def count(self) -> Dim:
        """How many windows there are."""
        return self.batch * numel(self.out)

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


def window_of(
    x: Value, weight: Value, image: tuple[Dim, ...], out: tuple[Dim, ...], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], groups: int,
) -> Window:  # fmt: skip
    """The sizes, where a product may compute the convolution at all; `image` is the larger of operand and result."""
    kind = x.device.partition(":")[0]
    if x.device != weight.device or x.dtype != weight.dtype or x.dtype not in DTYPES.get(kind, ()):
        raise Decline("on a device or in a dtype where nobody measured it")
    sizes = (*image, *out) if kind == "cpu" else (image[1], out[1])
    if not all(isinstance(n, int) and n for n in (*sizes, *weight.shape)):
        raise Decline("empty or of unknown sizes")
    if groups != 1 or x.rank not in RANKS[kind]:
        raise Decline("groups, or of another rank")
    rank = x.rank - 2
    each = [tuple(items) * rank if len(items) == 1 else tuple(items) for items in (stride, padding, dilation)]
    return Window(image[0], image[1], weight.shape[0], image[2:], out[2:], weight.shape[2:], *each)  # type: ignore[arg-type]


def refuse_forward(window: Window, x: Value, transposed: bool, trains: bool) -> None:
    """Decline where ATen's forward is the better one."""
    if transposed and (x.device == "cpu" or trains):
        raise Decline("a transposed convolution on a CPU, or in a training step")
    if x.device == "cpu":
        if window.is_pointwise and not trains and _in_rows(x) and window.count * window.features <= FEW_ELEMENTS:
            return
        _refuse_on_cpu(window, FEW_WINDOWS, SMALL_PATCHES, _in_rows(x))
    elif not window.is_patches:
        raise Decline("windows that do not lie side by side")


def refuse_direct(x: Value, weight: Value, out: TensorType, padding: Sequence[int], groups: int, trains: bool) -> None:
    """Decline what is no convolution of few terms into images whose channels are fastest, or better left to ATen."""
    if x.device != "cpu" or weight.device != "cpu" or {x.dtype, weight.dtype} != {"float32"}:
        raise Decline("on a GPU, or in a dtype in which loops are slower (bfloat16: a tenth of the speed)")
    if trains or out.stride[1] != 1 or 0 in (*x.shape, *out.shape) or min(padding, default=0) < 0:
        raise Decline("in a training step, empty, or images whose channels are not fastest")
    if not all(isinstance(n, int) for n in (*weight.shape, x.shape[1])) or prod(weight.shape[1:]) > MOST_TERMS:  # type: ignore[arg-type]
        raise Decline("windows of many elements")
    if groups == 1:
        if set(weight.shape[2:]) <= {1} or x.type.stride[-1] != 1:
            raise Decline("a product, or images whose rows do not lie in memory")
        return
    if weight.shape[:2] != (groups, 1) or x.shape[1] != groups:
        raise Decline("groups of several channels")
    terms, size = prod(weight.shape[2:]), numel(x.shape)  # type: ignore[arg-type]
    if terms > FEW_TERMS and groups < MANY_CHANNELS:
        raise Decline("large windows of few channels")
    if isinstance(size, int) and size > (LARGEST_IMAGE if terms <= FEW_TERMS else LARGEST_IMAGE // 2):
        raise Decline("images that do not stay in the cache")


def is_image_a_product(window: Window, x: Value, wants_kernel: bool) -> bool:
    """Whether the gradient of the image is a product, as that of the kernel is; else the latter is one alone. Declines
    where ATen's backward is the better one for both."""
    if x.device == "cpu":
        _refuse_on_cpu(window, FEW_WINDOWS_BACKWARD, window.count * window.width, _in_rows(x))  # type: ignore[arg-type]
        return True
    if not window.is_patches and not (wants_kernel and _is_summed_apart(window, x)):
        raise Decline("windows that do not lie side by side, or a gradient that is not summed apart")
    return window.is_patches


def _is_summed_apart(window: Window, x: Value) -> bool:
    """Whether cuDNN computes the gradient of a 1x1 kernel for each image, of few places."""
    places = numel(window.image)
    is_odd = isinstance(places, int) and places % 2 == 1 and places <= FEW_PIXELS
    grows = window.channels < window.features and window.channels * window.features <= SUMMED_APART
    return window.is_pointwise and set(window.step) == {1} and is_odd and grows and not _in_rows(x)


def _refuse_on_cpu(window: Window, few: int, patches: int, in_rows: bool) -> None:
    weights = window.width * window.features
    if window.is_pointwise and prod(window.out) <= FEW_PIXELS and (in_rows or weights >= LARGE_WEIGHT):  # type: ignore[arg-type]
        return
    if window.is_patches and window.count * window.width <= patches:
        return
    if window.count > few or weights < SOME_WEIGHT or (prod(window.kernel) > MOST_TAPS and not window.is_patches):
        raise Decline("many windows, or large ones")


def _in_rows(x: Value) -> bool:
    """Whether the channels of an image are fastest, or it is of one place."""
    return x.type.stride[1] == 1 or prod(x.shape[2:]) == 1  # type: ignore[arg-type]
