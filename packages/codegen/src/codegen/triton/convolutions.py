"""Convolutions of images as products of matrices, none of which is ever in memory.

    rows: the points of all results (n, p, q)   columns: channels of the result   depth: taps of the window, channels
    left[(n, p, q), (tap, c)] = image[n, c, p*stride - padding + tap*dilation, ...], 0 outside of the image

The channels of the result are fastest in memory, as those of the image had better be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from codegen.triton import tuning
from stagewire.graph import Arg, List, Ref, Tuple
from stagewire.loop import Extern
from stagewire.types import TensorType

NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "transposed", "output_padding", "groups")

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Heights and widths: of the image, of the result, of the window and how it moves.

    image, weight: strides in memory.
    """

    image_size: Pair
    size: Pair
    taps: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    image: tuple[int, int, int, int]
    weight: tuple[int, int, int, int]

    @property
    def count(self) -> int:
        """How many taps there are."""
        return self.taps[0] * self.taps[1]

    @property
    def is_point(self) -> bool:
        """Whether the window is a point that goes over all of an image without gaps: then this is a plain product."""
        height, width = self.image_size
        n, _, down, along = self.image
        packed = width > 1 and (height == 1 or down == width * along) and n == height * width * along
        return packed and (self.taps, self.stride, self.padding) == ((1, 1), (1, 1), (0, 0))

    @property
    def is_inside(self) -> bool:
        """Whether every tap is inside of the image at every point."""
        return self.padding == (0, 0)


def window_of(call: Extern, image: TensorType, weight: TensorType, made: TensorType) -> Window | None:
    """The geometry of a convolution over two dimensions; None for any that has no template."""
    given = {**dict(zip(NAMES, call.args, strict=False)), **call.kwargs}
    if set(given) != set(NAMES) or len(made.shape) != 4 or given["transposed"] is not False or given["groups"] != 1:
        return None
    stride, padding, dilation = (pair(given[name]) for name in ("stride", "padding", "dilation"))
    if stride is None or padding is None or dilation is None:
        return None
    _, channels, height, width = made.shape
    packed = (channels * height * width, 1, channels * width, channels)
    if any(size > 1 and have != want for size, have, want in zip(made.shape, made.stride, packed, strict=True)):
        return None  # channels are not fastest, or there are gaps
    if made.dtype == "float32" or image.shape[1] < tuning.SM_90.least_channels:  # type: ignore[operator]
        return None  # float32 has flags of its own for convolutions; of few channels, most of a product is of nothing
    return Window(
        image.shape[2:], made.shape[2:], weight.shape[2:], stride, padding, dilation, image.stride, weight.stride
    )  # type: ignore[arg-type]


def pair(arg: Arg) -> Pair | None:
    """Two numbers, given as two or as one for both."""
    items: Any = arg.items if isinstance(arg, List | Tuple) else ()
    if len(items) not in (1, 2) or not all(isinstance(item, int) for item in items):
        return None
    return (items[0], items[-1])


def operands(call: Extern) -> tuple[str, str, str | None] | None:
    """Image, weight and bias of the call."""
    given = {**dict(zip(NAMES, call.args, strict=False)), **call.kwargs}
    match given:
        case {"input": Ref(image), "weight": Ref(weight), "bias": None}:
            return image, weight, None
        case {"input": Ref(image), "weight": Ref(weight), "bias": Ref(bias)}:
            return image, weight, bias
    return None
