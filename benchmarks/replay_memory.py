"""Memory that recordings of CUDA graphs hold: a model at six batch sizes, each compiled and recorded, in one process.

    python benchmarks/replay_memory.py [--batches 1 2 4 8 16 32] [--length 256] [--engines torch stagefold]
                                       [--models gpt2 bert llama vit]

For each model, engine and way (inference, training) a process of its own: what torch's allocator holds after each size
has run four times (allocated, reserved), the peak of another round, and the time of a step of the largest size.
Parameters and their gradients are not counted. "open sizes" is one program of stagefold for all sizes, "own pools"
stagefold with a pool for each recording.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import subprocess
import sys
import time
from typing import Any

import torch

import stagefold

MODELS = {
    "gpt2": ("GPT2LMHeadModel", {"use_cache": False, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "bert": ("BertModel", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
    "llama": ("LlamaForCausalLM", {"use_cache": False, "hidden_size": 1024, "intermediate_size": 2816,
                                   "num_hidden_layers": 12, "num_attention_heads": 16}),
    "vit": ("ViTModel", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
}  # fmt: skip
"""Classes of transformers and what their configurations differ in from the usual one."""

ENGINES = ("eager", "torch", "stagefold", "open sizes", "own pools")


def compiled(engine: str, model: Any) -> Any:
    if engine == "torch":
        return torch.compile(model, mode="reduce-overhead", dynamic=False)
    if engine == "own pools":
        from codegen.runtime import recording

        recording.SHARE = -1.0
    if engine == "eager":
        return model
    return stagefold.compile(model, mode="reduce-overhead", dynamic=engine == "open sizes")


def measure(name: str, engine: str, training: bool, batches: list[int], length: int) -> None:
    """Print one row. length: of a text; images have the usual size."""
    import transformers

    class_name, settings = MODELS[name]
    made = getattr(transformers, class_name)
    torch.manual_seed(0)
    model = made(made.config_class(**settings)).cuda().bfloat16().train(training)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if training else None
    if name == "vit":
        inputs = [torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.bfloat16) for batch in batches]
    else:
        words = model.config.vocab_size
        inputs = [torch.randint(0, words, (batch, length), device="cuda") for batch in batches]
    call = compiled(engine, model)

    def step(ids: torch.Tensor) -> None:
        if engine == "torch":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.set_grad_enabled(training):
            result = call(ids)[0]
            if training:
                result.float().sum().backward()

    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # what the parameters were made in
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for ids in inputs:
        for _ in range(4):
            step(ids)
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated() - before[0], torch.cuda.memory_reserved() - before[1]
    torch.cuda.reset_peak_memory_stats()
    for ids in inputs:
        step(ids)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_reserved() - before[1]
    start = time.perf_counter()
    for _ in range(10):
        step(inputs[-1])
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / 10
    sizes = " ".join(f"{number / 2**20:10.0f}" for number in (*held, peak))
    print(
        f"{name:6s} {'training' if training else 'inference':10s} {engine:10s} {sizes} MiB {seconds * 1e3:8.2f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=ENGINES)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=["gpt2"])
    parser.add_argument("--one", nargs=3, metavar=("MODEL", "ENGINE", "WAY"), help="this process measures one row")
    arguments = parser.parse_args()
    if arguments.one:
        name, engine, way = arguments.one
        measure(name, engine, way == "training", arguments.batches, arguments.length)
        return
    print(f"{'':28s} {'allocated':>10s} {'reserved':>10s} {'peak':>10s}")
    for name, way, engine in itertools.product(arguments.models, ("inference", "training"), arguments.engines):
        subprocess.run([sys.executable, *sys.argv, "--one", name, engine, way], check=False)


if __name__ == "__main__":
    main()
