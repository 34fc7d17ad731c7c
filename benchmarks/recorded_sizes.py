"""Programs whose sizes are open, recorded as CUDA graphs for each size, on an NVIDIA GPU.

    python benchmarks/recorded_sizes.py [CASE ...] [--no-peer]

Each case is one model at several sizes in turn, in bfloat16, with `dynamic=True`: eager, stagefold by default, with
`mode="reduce-overhead"`, and torch.compile with that mode. A row is one size: microseconds of a step when all sizes
have been recorded (medians of rounds in which engines take turns), and how far the result is from eager's, relative to
its norm. "host" is what the processor takes for a call, nothing being waited for; "open" the milliseconds of the second
step at a size, which records it; "MiB" what the device has less of memory after all sizes than before the first.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import stagefold

GPT2 = {"use_cache": False, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
BERT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CASES: dict[str, tuple[tuple[str, str, dict[str, Any]], bool, list[tuple[int, int]]]] = {
    "gpt2 decoding": (("GPT2", "GPT2LMHeadModel", GPT2), False, [(1, n) for n in (16, 24, 33, 48, 64, 100)]),
    "bert": (("Bert", "BertModel", BERT), False, [(8, n) for n in (512, 384, 200, 128, 64)]),
    "gpt2 training": (("GPT2", "GPT2LMHeadModel", GPT2), True, [(4, n) for n in (256, 200, 128)]),
}
ENGINES: dict[str, Callable[[Any], Any]] = {
    "eager": lambda model: model,
    "default": lambda model: stagefold.compile(model, dynamic=True),
    "reduce-overhead": lambda model: stagefold.compile(model, mode="reduce-overhead", dynamic=True),
    "torch.compile": lambda model: torch.compile(model, mode="reduce-overhead", dynamic=True),
}


def stepper(engine: str, call: Any, model: Any, training: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """One step at the size of its argument."""

    def step(ids: torch.Tensor) -> torch.Tensor:
        if engine == "torch.compile":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.set_grad_enabled(training):
            result = call(ids)[0]
            if training:
                for parameter in model.parameters():
                    parameter.grad = None
                result.float().sum().backward()
        return result.detach()

    return step


def seconds(step: Callable[[torch.Tensor], Any], ids: torch.Tensor, count: int) -> tuple[float, float]:
    """Of one step: until the device is done, and until the call returns."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step(ids)
    returned = time.perf_counter()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count, (returned - start) / count


def run(name: str, engines: list[str]) -> None:
    """Print one case."""
    import transformers

    (family, kind, settings), training, sizes = CASES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**settings)
    original = getattr(transformers, kind)(config).cuda().bfloat16().train(training)
    inputs = [torch.randint(0, config.vocab_size, size, device="cuda") for size in sizes]
    steps, opening, memory = {}, {}, {}
    expected: list[torch.Tensor] = []
    errors: dict[str, list[float]] = {}
    for engine in engines:
        model = copy.deepcopy(original)
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.mem_get_info()[0]
        step = steps[engine] = stepper(engine, ENGINES[engine](model), model, training)
        opening[engine], errors[engine] = [], []
        for ids in inputs:
            step(ids)
            opening[engine].append(seconds(step, ids, 1)[0])
            for _ in range(3):
                step(ids)
        for place, ids in enumerate(inputs):
            result = step(ids).double()
            if engine == "eager":
                expected.append(result)
            errors[engine].append(float((result - expected[place]).norm() / expected[place].norm()))
        del result
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        memory[engine] = (before - torch.cuda.mem_get_info()[0]) / 2**20
    print(f"{name}: MiB {', '.join(f'{engine} {size:.0f}' for engine, size in memory.items())}")
    for place, ids in enumerate(inputs):
        rounds: dict[str, list[tuple[float, float]]] = {engine: [] for engine in engines}
        for _ in range(5):
            for engine in engines:
                rounds[engine].append(seconds(steps[engine], ids, 10))
        for engine in engines:
            device, host = (statistics.median(column) * 1e6 for column in zip(*rounds[engine], strict=True))
            print(
                f"  {'x'.join(map(str, ids.shape)):8s} {engine:16s} {device:9.0f} us  host {host:8.0f}"
                f"  open {opening[engine][place] * 1e3:8.1f} ms  error {errors[engine][place]:.1e}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--no-peer", action="store_true")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    for name in arguments.cases or CASES:
        run(name, [engine for engine in ENGINES if not (arguments.no_peer and engine == "torch.compile")])


if __name__ == "__main__":
    main()
