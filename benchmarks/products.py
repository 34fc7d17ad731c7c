"""Products of matrices with what follows them, on one NVIDIA GPU: eager, stagefold, and both compilers tuned.

    python benchmarks/products.py [CASE ...] [--dtype bfloat16] [--peer] [--records]

A figure is microseconds of the device for one call: many calls recorded as a CUDA graph and replayed, so that what the
processor takes is not seen. `first` is the first call with an empty cache, `warm` the same in a new wrapper with what
the first one kept. `--records` prints what was timed, and what was skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import stagefold

MODE = "max-autotune-no-cudagraphs"

Case = tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]

CASES: dict[str, Case] = {
    "linear gelu 4096x3072x768": (lambda x, w, b: F.gelu(F.linear(x, w, b)), ((4096, 768), (3072, 768), (3072,))),
    "linear 4096x768x3072": (lambda x, w, b: F.linear(x, w, b), ((4096, 3072), (768, 3072), (768,))),
    "linear residual 4096x768x768": (
        lambda x, w, b, r: F.linear(x, w, b) + r,
        ((4096, 768), (768, 768), (768,), (4096, 768)),
    ),
    "linear relu 8192x4096x1024": (lambda x, w, b: F.linear(x, w, b).relu(), ((8192, 1024), (4096, 1024), (4096,))),
    "swiglu 4096x2816x1024": (
        lambda x, w, v: F.silu(x @ w.t()) * (x @ v.t()),
        ((4096, 1024), (2816, 1024), (2816, 1024)),
    ),
    "transposed 768x3072x4096": (lambda g, x: g.t() @ x, ((4096, 768), (4096, 3072))),
    "linear gelu 16x4096x4096": (lambda x, w, b: F.gelu(F.linear(x, w, b)), ((16, 4096), (4096, 4096), (4096,))),
    "linear gelu 100352x384x96": (lambda x, w, b: F.gelu(F.linear(x, w, b)), ((100352, 96), (384, 96), (384,))),
    "batched scale 96x512x512x64": (
        lambda q, k: (q @ k.transpose(1, 2)) * 0.125,
        ((96, 512, 64), (96, 512, 64)),
    ),
    "batched, one matrix 64x197x768x384": (lambda x, w: (x @ w).relu(), ((64, 197, 384), (384, 768))),
    "conv 3x3 32x64x56": (
        lambda x, w, s: (F.conv2d(x, w, None, 1, 1) * s).relu(),
        ((32, 64, 56, 56), (64, 64, 3, 3), (64, 1, 1)),
    ),
    "conv 1x1 32x256x56 to 64": (
        lambda x, w, s: (F.conv2d(x, w) * s).relu(),
        ((32, 256, 56, 56), (64, 256, 1, 1), (64, 1, 1)),
    ),
    "conv 3x3 32x512x7": (
        lambda x, w, s: (F.conv2d(x, w, None, 1, 1) * s).relu(),
        ((32, 512, 7, 7), (512, 512, 3, 3), (512, 1, 1)),
    ),
    "gelu linear 4096x768x3072": (lambda x, w, b: F.linear(F.gelu(x), w, b), ((4096, 3072), (768, 3072), (768,))),
    "scale linear residual 4096x768x768": (
        lambda x, s, w, b, r: F.linear(x * s, w, b) + r,
        ((4096, 768), (768,), (768, 768), (768,), (4096, 768)),
    ),
    "norm relu conv 1x1 32x512x28 to 128": (
        lambda x, s, b, w: F.conv2d((x * s + b).relu(), w),
        ((32, 512, 28, 28), (512, 1, 1), (512, 1, 1), (128, 512, 1, 1)),
    ),
    "linear of a sum 16x4096x4096": (lambda x, y, w: F.linear(x + y, w), ((16, 4096), (16, 4096), (4096, 4096))),
    "20 small 16x16x16": (lambda x, w: _chain(x, w), ((16, 16), (16, 16))),
}


def _chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        x = torch.relu(x @ w)
    return x


def made(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random numbers; images and windows have their channels fastest."""
    tensor = torch.randn(shape, device="cuda", dtype=dtype) / shape[-1] ** 0.5
    return tensor.to(memory_format=torch.channels_last) if len(shape) == 4 else tensor


def device_time(call: Callable[..., Any], inputs: tuple[torch.Tensor, ...], count: int = 20) -> float:
    """Microseconds of the device for one call."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call(*inputs)
    graph.replay()
    seconds = []
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) / count * 1e6


def first_call(function: Any, inputs: tuple[torch.Tensor, ...], mode: str | None) -> tuple[Any, float]:
    """A compiled function, and the seconds of its first call."""
    compiled = stagefold.compile(function, mode=mode)
    torch.cuda.synchronize()
    start = time.perf_counter()
    compiled(*inputs)
    torch.cuda.synchronize()
    return compiled, time.perf_counter() - start


def records(directory: Path) -> list[dict[str, Any]]:
    """What was timed, the newest last."""
    paths = sorted(directory.rglob("tuned/*"), key=lambda path: path.stat().st_mtime)
    return [json.loads(path.read_bytes()[32:]) for path in paths]


def run(name: str, dtype: torch.dtype, *, peer: bool, show: bool) -> None:
    """Print one case."""
    function, shapes = CASES[name]
    torch.manual_seed(0)
    inputs = tuple(made(shape, dtype) for shape in shapes)
    expected = function(*(one.double() for one in inputs))
    with tempfile.TemporaryDirectory() as directory:
        os.environ["STAGEFOLD_CACHE_DIR"] = directory
        plain, _ = first_call(function, inputs, None)
        tuned, first = first_call(function, inputs, MODE)
        _, warm = first_call(function, inputs, MODE)
        engines: dict[str, Any] = {"eager": function, "ours": plain, "tuned": tuned}
        if peer:
            torch._dynamo.reset()
            engines["torch tuned"] = torch.compile(function, mode=MODE)
        timings = records(Path(directory))
        parts = [f"{name:36s} first {first:5.1f} s warm {warm:5.2f} s "]
        for engine, call in engines.items():
            off = float((call(*inputs).double() - expected).norm() / expected.norm())
            parts.append(f"{engine} {device_time(call, inputs):8.1f} us ({off:.0e})")
    picks = [one["pick"] for one in timings]
    print("  ".join(parts), " picks", picks, flush=True)
    for one in timings if show else []:
        times = ["-" if value is None else f"{value * 1e6:.1f}" for value in one["seconds"]]
        print("   ", one["pick"], " ".join(times), one["skipped"] or "", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--peer", action="store_true", help="torch.compile in the same mode beside")
    parser.add_argument("--records", action="store_true")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high" if arguments.tf32 else "highest")
    with torch.no_grad():
        for name in arguments.cases or CASES:
            run(name, getattr(torch, arguments.dtype), peer=arguments.peer, show=arguments.records)


if __name__ == "__main__":
    main()
