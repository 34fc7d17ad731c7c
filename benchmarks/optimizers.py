"""A step of an optimizer, compiled, over the parameters of a model on one NVIDIA GPU: time, first calls, error.

    python benchmarks/optimizers.py [MODEL ...] [--optimizers sgd adamw] [--dtype float32] [--no-peer]

Models are cases of `gpu.py`; only the shapes of their parameters matter here, and gradients are random. Beside eager's
loops over lists of tensors ("foreach", the default on a GPU): torch's fused kernel where the optimizer has one,
torch.compile and stagefold of `optimizer.step`, and of a step behind `clip_grad_norm_`. All take turns; a figure is the
median of rounds by the wall clock. "First" is all that is compiled: the first step, and the second, which finds the
state that the first has made. `err` is the relative error, by norms, of the parameters after a few steps against eager
in float64.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gpu
import torch
from torch import nn

import stagefold

Step = Callable[[], Any]
STEPS = 4  # behind which errors are measured

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=1e-3),
    "clipped adamw": partial(torch.optim.AdamW, lr=1e-3),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-3),
}


def copies(shapes: list[torch.Size], dtype: torch.dtype, kept: torch.dtype) -> list[nn.Parameter]:
    """Parameters with gradients, the same numbers at every call: rounded to `dtype`, held in `kept`."""
    generator = torch.Generator().manual_seed(0)

    def numbers(shape: torch.Size) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype).to("cuda", kept)

    found = [nn.Parameter(numbers(shape)) for shape in shapes]
    for parameter in found:
        parameter.grad = numbers(parameter.shape)
    return found


def stepper(name: str, parameters: list[nn.Parameter], **options: Any) -> Step:
    """One step of an optimizer over these."""
    optimizer = OPTIMIZERS[name](parameters, **options)
    if not name.startswith("clipped"):
        return optimizer.step

    def step() -> None:
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step


def measure(name: str, shapes: list[torch.Size], dtype: torch.dtype, engines: dict[str, Any]) -> None:
    """Print a row for each engine."""
    exact = copies(shapes, dtype, torch.float64)
    step = stepper(name, exact)
    for _ in range(STEPS):
        step()
    size = sum(float(x.detach().square().sum()) for x in exact)
    steps: dict[str, Step] = {}
    said: dict[str, str] = {}
    for engine, (wrap, options) in engines.items():
        parameters = copies(shapes, dtype, dtype)
        try:
            steps[engine] = wrap(stepper(name, parameters, **options))
            first = gpu.timed(steps[engine], 1) + gpu.timed(steps[engine], 1)
            for _ in range(STEPS - 2):
                steps[engine]()
        except (RuntimeError, TypeError) as failure:  # an optimizer without a fused kernel
            steps.pop(engine, None)
            print(f"  {name}, {engine}: {str(failure)[:200]}")
            continue
        off = sum(float((a.double() - b).detach().square().sum()) for a, b in zip(parameters, exact, strict=True))
        said[engine] = f"first {first:6.2f} s  err {(off / size) ** 0.5:.1e}"
    del exact
    middle = gpu.medians(steps, 10)
    for engine, value in middle.items():
        ratio = middle["eager"] / value
        print(f"  {name:14s} {engine:8s} {value * 1e6:9.1f} us  eager/it {ratio:5.2f}  {said[engine]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["resnet50 32", "gpt2 8x512"])
    parser.add_argument("--optimizers", nargs="*", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--no-peer", action="store_true")
    arguments = parser.parse_args()
    foreach = {"foreach": True}
    engines: dict[str, Any] = {"eager": (lambda f: f, foreach), "fused": (lambda f: f, {"fused": True})}
    if not arguments.no_peer:
        engines["torch"] = (torch.compile, foreach)
    engines["ours"] = (stagefold.compile, foreach)
    for model in arguments.models:
        shapes = [x.shape for x in gpu.CASES[model].make()[0].parameters()]
        print(f"{model}: {len(shapes)} parameters, {sum(map(torch.Size.numel, shapes)) / 1e6:.1f} M elements")
        for name in arguments.optimizers:
            torch._dynamo.reset()
            start = time.perf_counter()
            measure(name, shapes, getattr(torch, arguments.dtype), engines)
            print(f"  ({time.perf_counter() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
