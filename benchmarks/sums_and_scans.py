"""Sums and scans beside the bandwidth of a copy, on one NVIDIA GPU: eager, stagefold, and torch.compile if asked for.

    python benchmarks/sums_and_scans.py [CASE ...] [--peer]

A figure is microseconds of a call, many calls one after the other; sums also as a CUDA graph, so that what the host
takes is not seen. The share is that of the bytes read and written once at the bandwidth of a copy of 1 GiB.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch

import stagefold

Case = tuple[Callable[..., Any], tuple[int, ...]]

SUMS: dict[str, Case] = {
    "column sum 64k x 1k": (lambda x: (x * 2).sum(0), (65536, 1024)),
    "column sum 32k x 3k": (lambda x: x.sum(0), (32768, 3072)),
    "column sum 2k x 50k": (lambda x: x.sum(0), (2048, 50304)),
    "total sum 64M": (lambda x: (x * x).sum(), (64 << 20,)),
    "row sums 64 x 1M": (lambda x: x.sum(1), (64, 1 << 20)),
    "row sums 4k x 16k": (lambda x: x.sum(1), (4096, 16384)),
    "channels 64x256x56x56": (lambda x: torch.var_mean(x, (0, 2, 3)), (64, 256, 56, 56)),
    "channels last 64x56x56x256": (lambda x: torch.var_mean(x, (0, 1, 2)), (64, 56, 56, 256)),
}
SCANS: dict[str, Case] = {
    "cumsum rows 16k x 4k": (lambda x: x.cumsum(-1), (16384, 4096)),
    "cumsum rows 16k x 4k, around it": (lambda x: (x * 0.5).cumsum(-1).relu() + x, (16384, 4096)),
    "cumprod rows 16k x 4k": (lambda x: (1 + x * 0.001).cumprod(-1), (16384, 4096)),
    "cummax rows 16k x 4k": (lambda x: tuple(x.cummax(-1)), (16384, 4096)),
    "logcumsumexp rows 16k x 4k": (lambda x: x.logcumsumexp(-1), (16384, 4096)),
    "cumsum rows 1000 x 50k": (lambda x: x.cumsum(-1), (1000, 50000)),
    "cumsum rows 64 x 1M": (lambda x: x.cumsum(-1), (64, 1 << 20)),
    "cumsum of one row of 64M": (lambda x: x.cumsum(-1), (64 << 20,)),
    "cumsum columns 16k x 4k": (lambda x: x.cumsum(0), (16384, 4096)),
    "cumsum middle 32 x 2048 x 768": (lambda x: x.cumsum(1), (32, 2048, 768)),
    "logcumsumexp columns 16k x 4k": (lambda x: x.logcumsumexp(0), (16384, 4096)),
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
    with torch.cuda.stream(torch.cuda.Stream()):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
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
    function, shape = {**SUMS, **SCANS}[name]
    x = torch.randn(shape, device="cuda").to(dtype)
    compiled = stagefold.compile(function)
    made = compiled(x)
    found = {"eager": timed(lambda: function(x)), "stagefold": timed(lambda: compiled(x))}
    if name in SUMS:
        found["as a graph"] = recorded(lambda: compiled(x))
    moved = x.nbytes + sum(one.nbytes for one in (made if isinstance(made, tuple) else (made,)))
    share = moved / bandwidth / found.get("as a graph", found["stagefold"])
    if peer:
        other = torch.compile(function)
        other(x)
        found["torch.compile"] = timed(lambda: other(x))
    figures = "  ".join(f"{who} {us:9.2f}" for who, us in found.items())
    print(f"{name:34} {str(dtype)[6:]:9} {figures}  share {share:.2f}", flush=True)


def main() -> None:
    """Run the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*SUMS, *SCANS])
    parser.add_argument("--peer", action="store_true", help="torch.compile, too")
    arguments = parser.parse_args()
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, copy {bandwidth / 1e6:.2f} TB/s")
    for name in arguments.cases:
        for dtype in (torch.bfloat16, torch.float32):
            run(name, dtype, bandwidth, arguments.peer)


if __name__ == "__main__":
    main()
