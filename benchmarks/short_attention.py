"""`scaled_dot_product_attention` by the kernel of FlexAttention and by torch's kernels, on one NVIDIA GPU.

    python benchmarks/short_attention.py [--keys 49 64 ...] [--masks none heads batch]

Microseconds of the device of a call, and of a call and its gradients, in bfloat16. `LIMITS` of
`aotgrad.tracer.fused_attention` says where the former is taken. A mask is for each head ("heads") or for each of a
batch ("batch").
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import stagefold

SIZES = ((2048, 3, 32), (32, 12, 64), (8, 12, 64), (8, 16, 128))
"""Batch, heads, width; the first, windows of images, of at most 64 keys."""
TORCHS = {"aotgrad.flex_attention": ()}


def device_time(step: Callable[[], Any]) -> float:
    """Microseconds."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profiler.key_averages()) / 5


def stepper(options: dict[str, Any], given: list[Tensor], mask: Tensor | None, training: bool) -> Callable[[], Any]:
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    compiled = stagefold.compile(attend, dynamic=False, options=options)
    tensors = [one.detach().requires_grad_(training) for one in given]

    def step() -> None:
        with torch.set_grad_enabled(training):
            out = compiled(*tensors, mask)
        if training:
            torch.autograd.grad(out, tensors, given[0])

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, nargs="*", default=[16, 49, 64, 128, 192, 197, 256, 384, 512, 1024])
    parser.add_argument("--masks", nargs="*", default=["none", "heads", "batch"])
    arguments = parser.parse_args()
    for batch, heads, width in SIZES:
        for keys in arguments.keys:
            if batch * heads * keys > 1 << 19:
                continue
            given = [
                torch.randn(batch, keys, heads, width, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
                for _ in range(3)
            ]
            for kind in arguments.masks:
                shape = {"heads": (1, heads), "batch": (batch, 1)}.get(kind)
                mask = None if shape is None else torch.randn(*shape, keys, keys, device="cuda", dtype=torch.bfloat16)
                times = [
                    device_time(stepper(options, given, mask, training))
                    for training in (False, True)
                    for options in ({}, TORCHS)
                ]
                line = " ".join(f"{time:7.1f}" for time in times)
                print(f"{batch:5d} x {heads:2d} x {keys:4d} x {width:3d}  {kind:5s} {line}", flush=True)


if __name__ == "__main__":
    main()
