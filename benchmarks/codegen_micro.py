"""What a call of a compiled program costs beyond its arithmetic, and its first call, beside eager and torch.compile.

    python benchmarks/codegen_micro.py [--repeat 300] [--threads 1] [--no-peer]

Small programs, so that nearly all of the time is overhead. "ours" is the loaded unit alone (inputs in, outputs out, no
guards); "bound" adds the binding of the autograd function; torch.compile's figure includes its guards. All engines run
in turns in one process; medians. Seconds of compiling are from the captured graph on, without caches.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from aotgrad import AotGrad, PartitionStage
from aotgrad.bind import bind, read_constant
from aotgrad.testing import capture_by_torch_function
from codegen import Codegen, load
from loopir.stage import LoopIR
from primops.stage import Primops


class MLP(nn.Module):
    """Three linear layers with gelu and a layer norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width),
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Pairs(nn.Module):
    """Twenty products, each with a relu."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(20))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = torch.relu(x @ weight)
        return x


class Sum(nn.Module):
    """One addition."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "x + x, 1024": (Sum, (1024,)),
    "20 x (mm, relu) 16x16": (lambda: Pairs(16), (16, 16)),
    "MLP width 64, batch 8": (lambda: MLP(64), (8, 64)),
    "MLP width 512, batch 64": (lambda: MLP(512), (64, 512)),
}


def compiled(model: nn.Module, x: torch.Tensor, directory: str) -> tuple[Callable[[], Any], Callable[[], Any], float]:
    """The loaded forward alone, the bound program, and the seconds that stages two to five took."""
    capture, tensors = capture_by_torch_function(model, [x])
    start = time.perf_counter()
    document: Any = capture
    for stage in (AotGrad(), Primops(), PartitionStage(), LoopIR(), Codegen()):
        document = stage.run(document)
    units = [unit for unit in (document.forward, document.backward) if unit is not None]
    loaded = load(units, directory)
    seconds = time.perf_counter() - start
    constants = [read_constant(constant.value) for constant in document.binding.constants]
    given = [tensor.detach() for tensor in tensors] + constants
    bound = bind(document.binding, *loaded)
    return lambda: loaded[0](*given), lambda: bound(*tensors), seconds


def medians(engines: dict[str, Callable[[], Any]], repeat: int) -> dict[str, float]:
    """Microseconds a call, engines in turns, each sample a few calls."""
    samples: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(repeat + 20):
        for name, call in engines.items():
            start = time.perf_counter()
            for _ in range(5):
                call()
            if number >= 20:
                samples[name].append((time.perf_counter() - start) / 5 * 1e6)
    return {name: statistics.median(values) for name, values in samples.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-peer", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for mode in ("inference", "training"):
        for name, (build, shape) in CASES.items():
            report(name, mode, build, shape, options)


def report(
    name: str, mode: str, build: Callable[[], nn.Module], shape: tuple[int, ...], options: argparse.Namespace
) -> None:
    """One line of the table."""
    torch.manual_seed(0)
    model, x = build(), torch.randn(shape)
    training = mode == "training"
    if training and not list(model.parameters()):
        return
    with torch.set_grad_enabled(training), tempfile.TemporaryDirectory() as directory:
        unit, bound, seconds = compiled(model, x, directory)
        engines = {"eager": lambda: model(x), "ours": unit, "bound": bound}
        cold = ""
        if not options.no_peer:
            torch._dynamo.reset()
            peer = torch.compile(model)
            start = time.perf_counter()
            peer(x)
            cold = f", torch.compile {time.perf_counter() - start:5.2f} s"
            engines["torch.compile"] = lambda: peer(x)
        if training:
            engines = {key: _with_backward(call) for key, call in engines.items() if key != "ours"}
        found = medians(engines, options.repeat)
        times = "  ".join(f"{key} {value:8.1f}" for key, value in found.items())
    print(f"{mode:9s} {name:24s} us a call: {times}   | first: ours {seconds:5.2f} s{cold}", flush=True)


def _with_backward(call: Callable[[], Any]) -> Callable[[], Any]:
    def step() -> None:
        result = call()
        (result[0] if isinstance(result, tuple) else result).sum().backward()

    return step


if __name__ == "__main__":
    main()
