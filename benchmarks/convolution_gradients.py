"""The library's convolutions and their gradients, channels last, as CUDA graphs: share of the roofline of a GPU.

    python benchmarks/convolution_gradients.py

The roofline is the longer of what is read and written at the bandwidth of a copy, and the arithmetic at the rate of a
product of 8192 x 8192 matrices, both measured first.
"""

from __future__ import annotations

import torch
from sums_and_scans import copy_bandwidth, recorded, timed
from torch.nn import functional as F

CASES = [  # images, channels, height and width, channels of the result, window, stride
    (32, 64, 56, 64, 1, 1), (32, 64, 56, 64, 3, 1), (32, 64, 56, 256, 1, 1), (32, 256, 56, 64, 1, 1),
    (32, 256, 56, 512, 1, 2), (32, 128, 28, 128, 3, 1), (32, 256, 14, 256, 3, 1), (32, 512, 7, 512, 3, 1),
    (8, 64, 128, 64, 3, 1), (128, 128, 28, 128, 3, 1), (128, 256, 14, 256, 3, 1),
]  # fmt: skip


def run(case: tuple[int, ...], dtype: torch.dtype, rate: float, bandwidth: float) -> None:
    """Print forward, gradient of the image and of the weight; `rate` in operations a microsecond."""
    number, channels, size, made, window, stride = case
    pad = window // 2
    x, w = torch.randn(number, channels, size, size), torch.randn(made, channels, window, window)
    x, w = (one.cuda().to(dtype, memory_format=torch.channels_last) for one in (x, w))
    y = F.conv2d(x, w, None, stride, pad)
    grad = torch.randn_like(y)
    moved = (x.nbytes + w.nbytes + y.nbytes) / bandwidth
    best = max(2 * y.numel() * channels * window * window / rate, moved)

    def backward(*wanted: bool) -> float:
        geometry = ([stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1)
        return recorded(lambda: torch.ops.aten.convolution_backward(grad, x, w, None, *geometry, [*wanted, False]))

    found = [recorded(lambda: F.conv2d(x, w, None, stride, pad)), backward(True, False), backward(False, True)]
    print(case, str(dtype)[6:], "  ".join(f"{us:.1f} us ({best / us:.2f})" for us in found), flush=True)


def main() -> None:
    """Run all cases in bfloat16 and in TF32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    bandwidth = copy_bandwidth()
    for dtype in (torch.bfloat16, torch.float32):
        square = torch.randn(8192, 8192, device="cuda").to(dtype)
        rate = 2 * 8192**3 / timed(lambda square=square: square @ square, 5)
        print(f"copy {bandwidth / 1e6:.2f} TB/s, product {rate / 1e6:.0f} TFLOP/s; forward, image, weight")
        for case in CASES:
            run(case, dtype, rate, bandwidth)


if __name__ == "__main__":
    main()
