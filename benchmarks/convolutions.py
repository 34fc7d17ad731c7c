"""Convolutions that become loops and products in inference beside ATen's, in one process, in turns.

    python benchmarks/convolutions.py [--threads 1] [--quick] [--bfloat16]

A function is relu6(conv(relu6(x * scale))) on images whose channels are fastest. (First convolutions of a network, of
few channels, take images whose rows lie in memory; a depthwise and a 1x1 convolution follow.) A row: features,
channels, size of the image, kernel, stride, dilation, images; microseconds with ATen's convolution, and how many times
as fast ours is (the median over rounds of the ratio within a round; one thread: processor time).
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import NamedTuple

import torch
from beside.page import geometric_mean
from beside.turns import in_turns
from torch.nn import functional as F

import stagefold


class Shape(NamedTuple):
    """groups: 1, or as many as there are channels."""

    features: int
    channels: int
    size: int
    kernel: int
    stride: int
    dilation: int
    images: int

    @property
    def groups(self) -> int:
        return self.features if self.channels == 1 else 1


DEPTHWISE = [
    Shape(channels, 1, size, kernel, stride, dilation, images)
    for images in (1, 4)
    for channels, sizes in ((8, (14, 56, 112)), (32, (14, 56, 112)), (96, (14, 56, 112)), (144, (7, 28, 56)),
                            (200, (7, 28)), (512, (7, 14)))
    for size in sizes
    for kernel, stride, dilation in ((3, 1, 1), (3, 2, 1), (3, 1, 2), (5, 1, 1), (5, 2, 1), (7, 1, 1), (7, 2, 1))
]  # fmt: skip
STEMS = [
    Shape(features, channels, size, kernel, stride, 1, images)
    for images in (1, 4)
    for features in (16, 32, 64)
    for channels, size, kernel, stride in ((3, 32, 3, 1), (3, 64, 3, 2), (3, 224, 3, 2), (1, 28, 5, 1), (4, 64, 3, 1))
]
POINTWISE = [
    Shape(features, channels, size, 1, 1, 1, images)
    for images in (1, 4)
    for features, channels, size in ((64, 16, 32), (96, 16, 112), (24, 144, 56), (144, 24, 56), (32, 192, 28),
                                     (384, 64, 14), (96, 576, 14), (1280, 320, 7), (256, 64, 56), (96, 384, 4))
]  # fmt: skip


def speed(shape: Shape, dtype: torch.dtype) -> tuple[float, float]:
    """Microseconds with ATen's convolution, and the speed of ours over it."""
    torch.manual_seed(0)
    is_first, channels = shape in STEMS, shape.features if shape.groups > 1 else shape.channels
    layout = torch.contiguous_format if is_first else torch.channels_last
    x = torch.randn(shape.images, channels, shape.size, shape.size).to(dtype, memory_format=layout)
    weight = torch.randn(shape.features, shape.channels, shape.kernel, shape.kernel).to(dtype) / shape.kernel
    deep, last = torch.randn(shape.features, 1, 3, 3).to(dtype), torch.randn(8, shape.features, 1, 1).to(dtype)
    scale = torch.rand(channels, 1, 1).to(dtype)
    padding = shape.dilation * (shape.kernel // 2)

    def function(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        image = F.relu6(x * scale)
        image = F.relu6(F.conv2d(image, weight, None, shape.stride, padding, shape.dilation, shape.groups))
        if is_first:
            image = F.relu6(F.conv2d(F.relu6(F.conv2d(image, deep, None, 2, 1, 1, shape.features)), last))
        return image

    kept = stagefold.compile(function, options={"primops.keep": ("aten.convolution.default",)})
    calls = [partial(one, x, weight, scale) for one in (kept, stagefold.compile(function))]
    first, second = (call().float() for call in calls)
    torch.testing.assert_close(first, second, rtol=2e-2, atol=2e-2 * float(first.max()))
    seconds, (found,) = in_turns(calls, least=0.01)
    return seconds * 1e6, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="every seventh shape")
    parser.add_argument("--bfloat16", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for name, shapes in (("depthwise", DEPTHWISE), ("stems", STEMS), ("1x1", POINTWISE)):
        speeds = []
        for shape in shapes[:: 7 if given.quick else 1]:
            microseconds, found = speed(shape, torch.bfloat16 if given.bfloat16 else torch.float32)
            speeds.append(found)
            print(*(f"{n:4}" for n in shape), f"{microseconds:8.1f} {found:6.2f}", flush=True)
        print(f"{name}: {len(speeds)} shapes, speed {geometric_mean(speeds):.2f}, least {min(speeds):.2f}", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
