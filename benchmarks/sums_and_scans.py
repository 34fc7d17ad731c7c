"""Sums, scans and norms beside the bandwidth of a copy, on one NVIDIA GPU: eager, stagefold, and torch.compile if asked
for.

    python benchmarks/sums_and_scans.py [CASE ...] [--peer]

A figure is microseconds of a call, many calls one after the other; ours also as a CUDA graph, so that what the host
takes is not seen. The share is that of the bytes read and written once at the bandwidth of a copy of 1 GiB. A step
of training is forward and backward: it reads its operand twice and a gradient, and writes a result and a gradient.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

import stagefold

Case = tuple[Callable[..., Any], tuple[int, ...]]


def layer_norm(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[1:], *weights)


def rms_norm(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[1:], *weights)


def group_norm(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 32, *weights)


SUMS: dict[str, Case] = {
    "column sum 64k x 1k": (lambda x: (x * 2).sum(0), (65536, 1024)),
    "column sum 32k x 3k": (lambda x: x.sum(0), (32768, 3072)),
    "column sum 2k x 50k": (lambda x: x.sum(0), (2048, 50304)),
    "total sum 64M": (lambda x: (x * x).sum(), (64 << 20,)),
    "row sums 64 x 1M": (lambda x: x.sum(1), (64, 1 << 20)),
    "row sums 4k x 16k": (lambda x: x.sum(1), (4096, 16384)),
    "channels 64x256x56x56": (lambda x: torch.var_mean(x, (0, 2, 3)), (64, 256, 56, 56)),
    "channels last 64x56x56x256": (lambda x: torch.var_mean(x, (0, 1, 2)), (64, 56, 56, 256)),
    "channels last 128x56x56x256": (lambda x: torch.var_mean(x, (0, 1, 2)), (128, 56, 56, 256)),
    "channels last 256x56x56x256": (lambda x: torch.var_mean(x, (0, 1, 2)), (256, 56, 56, 256)),
}
ROWS: dict[str, Case] = {
    "argmax of rows 4k x 50k": (lambda x: x.argmax(1), (4096, 50304)),
    "argmax of columns 16k x 4k": (lambda x: x.argmax(0), (16384, 4096)),
    "argmax of all 64M": (lambda x: x.argmax(), (64 << 20,)),
    "softmax 8k x 16k": (lambda x: x.softmax(1), (8192, 16384)),
    "softmax 4k x 32k": (lambda x: x.softmax(1), (4096, 32768)),
    "softmax 2k x 64k": (lambda x: x.softmax(1), (2048, 65536)),
    "softmax 4k x 20k": (lambda x: x.softmax(1), (4096, 20000)),
    "softmax 8k x 50k": (lambda x: x.softmax(1), (8192, 50304)),
    "layer norm 8k x 5k": (layer_norm, (8192, 5120)),
    "layer norm 4k x 32k": (layer_norm, (4096, 32768)),
    "layer norm 2k x 64k": (layer_norm, (2048, 65536)),
    "RMS norm 4k x 32k": (rms_norm, (4096, 32768)),
    "RMS norm 2k x 64k": (rms_norm, (2048, 65536)),
}
TRAINING: dict[str, tuple[Callable[..., Any], tuple[int, ...], int]] = {
    "RMS norm 8k x 16k, training": (rms_norm, (8192, 16384), 1),
    "RMS norm 32k x 4k, training": (rms_norm, (32768, 4096), 1),
    "layer norm 8k x 16k, training": (layer_norm, (8192, 16384), 2),
    "layer norm 32k x 4k, training": (layer_norm, (32768, 4096), 2),
    "layer norm 32k x 1k, training": (layer_norm, (32768, 1024), 2),
    "layer norm 16k x 768, training": (layer_norm, (16384, 768), 2),
    "layer norm 4k x 768, training": (layer_norm, (4096, 768), 2),
    "group norm 64 x 256 x 28 x 28, training": (group_norm, (64, 256, 28, 28), 2),
    "softmax 16k x 4k, training": (lambda x: x.softmax(1), (16384, 4096), 0),
}
"""With the number of weights, which are as long as a row, or have a number for each channel."""

SCANS: dict[str, Case] = {
    "cumsum rows 16k x 4k": (lambda x: x.cumsum(-1), (16384, 4096)),
    "cumsum rows 16k x 4k, around it": (lambda x: (x * 0.5).cumsum(-1).relu() + x, (16384, 4096)),
    "cumprod rows 16k x 4k": (lambda x: (1 + x * 0.001).cumprod(-1), (16384, 4096)),
    "cummax rows 16k x 4k": (lambda x: tuple(x.cummax(-1)), (16384, 4096)),
    "logcumsumexp rows 16k x 4k": (lambda x: x.logcumsumexp(-1), (16384, 4096)),
    "cumsum rows 1000 x 50k": (lambda x: x.cumsum(-1), (1000, 50000)),
    "cumsum rows 64 x 1M": (lambda x: x.cumsum(-1), (64, 1 << 20)),
    "cumsum of one row of 64M": (lambda x: x.cumsum(-1), (64 << 20,)),
    "cumsum of one row of 64M, around it": (lambda x: (x * 2).cumsum(-1).relu() + x, (64 << 20,)),
    "cummax rows 64 x 1M": (lambda x: tuple(x.cummax(-1)), (64, 1 << 20)),
    "logcumsumexp rows 64 x 1M": (lambda x: x.logcumsumexp(-1), (64, 1 << 20)),
    "cumsum columns 16k x 4k": (lambda x: x.cumsum(0), (16384, 4096)),
    "cumsum of few columns 128k x 512": (lambda x: x.cumsum(0), (131072, 512)),
    "cumsum of short columns 4k x 64 x 512": (lambda x: x.cumsum(1), (4096, 64, 512)),
    "cumsum middle 32 x 2048 x 768": (lambda x: x.cumsum(1), (32, 2048, 768)),
    "logcumsumexp columns 16k x 4k": (lambda x: x.logcumsumexp(0), (16384, 4096)),
    "cummax columns 16k x 4k": (lambda x: tuple(x.cummax(0)), (16384, 4096)),
}


def timed(call: Callable[[], Any], count: int = 20, repeats: int = 7) -> float:
    """Microseconds of a call."""
    for _ in range(3):
        call()
    found = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            call()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / count * 1000)
    return statistics.median(found)


def recorded(call: Callable[[], Any], count: int = 10) -> float:
    """Microseconds of a call as part of a CUDA graph of several."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(count):
            call()
    return timed(graph.replay, 1) / count


def copy_bandwidth() -> float:
    """Bytes a microsecond, read and written."""
    source = torch.empty(512 << 20, dtype=torch.bfloat16, device="cuda").normal_()
    target = torch.empty_like(source)
    return 2 * source.nbytes / timed(lambda: target.copy_(source), 5)


def run(name: str, dtype: torch.dtype, bandwidth: float, peer: bool) -> None:
    """Print the figures of one case."""
    if name in TRAINING:
        function, shape, count = TRAINING[name]
        weight = shape[1:2] if len(shape) == 4 else shape[1:]
        args = [torch.randn(s, device="cuda").to(dtype).requires_grad_() for s in (shape, *[weight] * count)]
    else:
        function, shape = {**SUMS, **ROWS, **SCANS}[name]
        args = [torch.randn(shape, device="cuda").to(dtype)]
    gradient = torch.randn_like(args[0])

    def step(call: Callable[..., Any]) -> Callable[[], Any]:
        if name in TRAINING:
            return lambda: torch.autograd.grad(call(*args), args, gradient)
        return lambda: call(*args)

    ours = step(stagefold.compile(function))
    made = ours()
    found = {"eager": timed(step(function)), "stagefold": timed(ours), "as a graph": recorded(ours)}
    moved = args[0].nbytes + sum(one.nbytes for one in (made if isinstance(made, tuple) else (made,)))
    moved = 5 * args[0].nbytes if name in TRAINING else moved
    share = moved / bandwidth / found["as a graph"]
    if peer:
        torch._dynamo.reset()
        other = step(torch.compile(function))
        other()
        found["torch.compile"] = timed(other) if name in SCANS else recorded(other)
    figures = "  ".join(f"{who} {us:9.2f}" for who, us in found.items())
    print(f"{name:34} {str(dtype)[6:]:9} {figures}  share {share:.2f}", flush=True)


def main() -> None:
    """Run the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*SUMS, *ROWS, *TRAINING, *SCANS])
    parser.add_argument("--peer", action="store_true", help="torch.compile, too")
    arguments = parser.parse_args()
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, copy {bandwidth / 1e6:.2f} TB/s")
    for name in arguments.cases:
        for dtype in (torch.bfloat16, torch.float32):
            run(name, dtype, bandwidth, arguments.peer)


if __name__ == "__main__":
    main()
