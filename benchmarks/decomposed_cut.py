"""The minimum cut between ATen ops beside the one through a decomposed joint graph, in one run.

    python benchmarks/decomposed_cut.py [--repeat 15]

Prints, for some programs, the bytes that the forward saves, the values computed again, and the CPU milliseconds of a
compiled training step (the least of the repetitions, which take turns; single-threaded).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aotgrad import AotGrad
from aotgrad import Options as Choices
from aotgrad.testing import capture_by_torch_function
from primops.stage import lower_graph
from stagefold.backend import StagefoldBackend
from stagefold.options import Options

MIB = 1 << 20
Made = tuple[Callable[..., Any], list[Tensor]]


def decoder() -> Made:
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from examples.models.gpt2 import GPT, GPTConfig

    config = GPTConfig(layers=2, context=128)
    model, ids = GPT(config), torch.randint(0, config.vocabulary, (2, 128))
    return lambda ids: model(ids, ids)[1], [ids]


def perceptron(activation: nn.Module) -> Made:
    layers = nn.Linear(256, 1024), nn.LayerNorm(1024), activation, nn.Dropout(0.1), nn.Linear(1024, 256), nn.Softmax(-1)
    model = nn.Sequential(*layers)
    return lambda x: model(x).square().mean(), [torch.randn(512, 256)]


def convolutions() -> Made:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.SiLU(), nn.Conv2d(32, 32, 3), nn.GroupNorm(4, 32), nn.Mish(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(32 * 14 * 14, 10),
    )  # fmt: skip
    return lambda x: F.cross_entropy(model(x), torch.arange(16) % 10), [torch.randn(16, 3, 32, 32)]


def gated() -> Made:
    weight, up, down = torch.randn(512, requires_grad=True), nn.Linear(512, 512), nn.Linear(512, 512)

    def program(x: Tensor) -> Tensor:
        h = up(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight)
        return (down(F.silu(h) * h) + x).logsumexp(-1).sum()

    return program, [torch.randn(1024, 512, requires_grad=True)]


PROGRAMS: dict[str, Callable[[], Made]] = {
    "decoder": decoder,
    "perceptron, gelu": lambda: perceptron(nn.GELU()),
    "perceptron, mish": lambda: perceptron(nn.Mish()),
    "convolutions": convolutions,
    "gated, RMS norm": gated,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"  {'program':<20}{'saved MiB':>20}{'computed again':>20}{'ms a step':>20}   (ATen, decomposed)")
    for name, make in PROGRAMS.items():
        torch.manual_seed(0)
        program, inputs = make()
        capture, tensors = capture_by_torch_function(program, inputs)
        grads = [AotGrad().run(capture, Choices(decompose=how)) for how in (None, lower_graph)]
        times = steps([compiled(grad) for grad in grads], tensors, given.repeat)
        saved = " ".join(f"{grad.partition.saved_bytes / MIB:9.2f}" for grad in grads)
        again = " ".join(f"{len(grad.partition.recomputed):9d}" for grad in grads)
        print(f"  {name:<20}{saved:>20}{again:>20}{' '.join(f'{t:9.2f}' for t in times):>20}", flush=True)


def compiled(grad: Any) -> Callable[..., Any]:
    """The program behind a `Grad`, through the other stages."""
    backend = StagefoldBackend(Options(cache=False, progress=False))
    document = grad
    for _, stage, options in backend.pipeline.stages[1:]:
        document = stage.run(document, options)
    return backend.load(document)


def steps(calls: list[Callable[..., Any]], tensors: list[Tensor], repeat: int) -> list[float]:
    """The shortest step of each, in milliseconds of CPU."""
    least = [float("inf")] * len(calls)
    for number in range(repeat + 2):
        for which, call in enumerate(calls):
            start = time.process_time()
            call(*tensors)[0].backward()
            if number >= 2:
                least[which] = min(least[which], (time.process_time() - start) * 1e3)
    return least


if __name__ == "__main__":
    main()
