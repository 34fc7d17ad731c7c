"""How compile time and memory grow with a program: a row for each kind of program, a column for each size.

    python benchmarks/growth.py [--only chain] [--most 800] [--device cuda] [--peer] [--detail]

Every measurement is a first call in a process of its own with an empty cache: seconds of the whole call (forward, and
backward where the program trains), those of each stage, of processors (compilers are processes) and the growth of the
process in MiB. The exponent is that of seconds above those of the smallest program, fitted over the sizes: 1 is linear;
and behind it stands how many times the smallest program the largest takes.
--peer: torch.compile's seconds for the same program (of at most 200 ops, which take it half a minute).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

OPS: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.sin, torch.tanh, torch.exp, torch.sigmoid, torch.relu, torch.log1p, torch.erf, torch.neg,
    lambda x: x * 0.5, lambda x: x + 1, lambda x: x / 3, torch.cos,
)  # fmt: skip
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def chain(size: int) -> Program:
    """`size` pointwise ops, in an order without a period, with a backward."""
    draw = random.Random(0)
    ops = [draw.choice(OPS) for _ in range(size)]

    def program(x: Tensor) -> Tensor:
        for op in ops:
            x = op(x)
        return x

    return program, (torch.rand(64, 64, requires_grad=True),)


def alternating(size: int) -> Program:
    """`size` ops, every other one a reduction and what it is subtracted from, with a backward."""
    draw = random.Random(0)
    ops = [draw.choice(OPS) for _ in range(size // 2)]

    def program(x: Tensor) -> Tensor:
        for op in ops:
            x = op(x)
            x = x - x.mean(-1, keepdim=True)
        return x

    return program, (torch.rand(64, 64, requires_grad=True),)


def wide(size: int) -> Program:
    """`size` ops in branches of four from one input, summed, with a backward."""
    draw = random.Random(0)
    branches = [[draw.choice(OPS) for _ in range(4)] for _ in range(size // 4)]

    def program(x: Tensor) -> Tensor:
        total = x
        for ops in branches:
            y = x
            for op in ops:
                y = op(y)
            total = total + y
        return total

    return program, (torch.rand(64, 64, requires_grad=True),)


def layers(size: int) -> Program:
    """`size` equal layers of a transformer's MLP, training."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

    return nn.Sequential(*(Layer() for _ in range(size))), (torch.rand(8, 32),)


def encoder(size: int) -> Program:
    """`size` layers of torch's transformer encoder, training, with dropout."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, size, enable_nested_tensor=False), (torch.randn(2, 16, 64),)


def language_model(family: str, size: int, **changes: int) -> Program:
    """The logits of a small model of transformers with `size` layers, training."""
    import transformers

    sizes = {"vocab_size": 128, "use_cache": False, "bos_token_id": 0, "eos_token_id": 0}
    model = getattr(transformers, f"{family}LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM")
    made = model(getattr(transformers, f"{family}Config")(**sizes, **changes)).train()
    return lambda tokens: made(tokens).logits, (torch.randint(0, 128, (2, 16)),)


def llama(size: int) -> Program:
    """Layers of Llama: rotary positions, grouped heads, a gated MLP."""
    widths = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    return language_model("Llama", size, num_hidden_layers=size, **widths)


def gpt2(size: int) -> Program:
    """Layers of GPT-2: dropout, biases, one product for queries, keys and values."""
    return language_model("GPT2", size, n_layer=size, n_embd=64, n_head=4, n_positions=32)


def inputs(size: int) -> Program:
    """`size` tensors, each multiplied, all summed."""

    def program(*tensors: Tensor) -> Tensor:
        total = tensors[0] * 2
        for tensor in tensors[1:]:
            total = total + tensor * 2
        return total

    return program, tuple(torch.rand(4, 8) for _ in range(size))


def symbols(size: int) -> Program:
    """`size` tensors of lengths that all differ and may change, under dynamic=True."""

    def program(*tensors: Tensor) -> list[Tensor]:
        return [tensor * 2 + 1 for tensor in tensors]

    return program, tuple(torch.rand(5 + place, 8) for place in range(size))


def guards(size: int) -> Program:
    """A list of `size` numbers, each of which is read and so guarded."""

    def program(x: Tensor, numbers: list[int]) -> Tensor:
        total = 0
        for number in numbers:
            total += number
        return x * total

    return program, (torch.rand(8), [place % 1000 for place in range(size)])


PROGRAMS: dict[str, tuple[Callable[[int], Program], tuple[int, ...]]] = {
    "chain": (chain, (50, 200, 800, 3200)),
    "alternating": (alternating, (50, 200, 800)),
    "wide": (wide, (50, 200, 800, 3200)),
    "layers": (layers, (4, 16, 64)),
    "encoder": (encoder, (4, 16, 48)),
    "llama": (llama, (4, 16, 48)),
    "gpt2": (gpt2, (4, 16, 48)),
    "inputs": (inputs, (10, 100, 1000)),
    "inputs, dynamic": (inputs, (10, 100, 300)),
    "symbols": (symbols, (1, 10, 100)),
    "guards": (guards, (100, 1000, 10_000, 100_000)),
}
DYNAMIC = ("inputs, dynamic", "symbols")
PEER_MOST = {"chain": 200, "alternating": 200, "wide": 200, "layers": 16, "encoder": 4, "llama": 4, "gpt2": 4,
             "inputs": 100, "inputs, dynamic": 100, "symbols": 10, "guards": 1000}  # fmt: skip


def measure(name: str, size: int, device: str, peer: bool) -> dict[str, Any]:
    """Of one first call, in this process."""
    torch.set_default_device(device)
    made, arguments = PROGRAMS[name][0](size)
    torch.set_default_device(None)
    dynamic = True if name in DYNAMIC else None
    stages: dict[str, float] = {}
    torch.rand(4, device=device, requires_grad=True).sin().sum().backward()
    if peer:
        call = torch.compile(made, dynamic=dynamic)
        torch.compile(lambda x: x + 1)(torch.ones(2, device=device))
    else:
        import bytecap
        from stagefold.backend import StagefoldBackend
        from stagefold.options import parse_options

        bytecap.optimize(lambda x: x + 1, StagefoldBackend(parse_options(None, None)))(torch.ones(2, device=device))
        backend = StagefoldBackend(parse_options(None, None))
        call = bytecap.optimize(made, backend, dynamic=dynamic)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    processors, start = os.times(), time.perf_counter()
    result = call(*arguments)
    if isinstance(result, Tensor) and result.requires_grad:
        result.sum().backward()
    seconds, after = time.perf_counter() - start, os.times()
    if not peer:
        for report in backend.reports:
            for stage, taken in report.seconds:
                stages[stage] = stages.get(stage, 0.0) + taken
        stages["capture and rest"] = seconds - sum(stages.values())
    used = sum(after[:4]) - sum(processors[:4])
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"seconds": seconds, "processors": used, "MiB": memory, "stages": stages}


def in_process(name: str, size: int, device: str, peer: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        places = {"STAGEFOLD_CACHE_DIR": f"{cache}/ours", "TORCHINDUCTOR_CACHE_DIR": f"{cache}/theirs"}
        places["TRITON_CACHE_DIR"] = f"{cache}/triton"
        asked = ["--worker", name, str(size), "--device", device, *(["--peer"] if peer else [])]
        command = [sys.executable, __file__, *asked]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | places, check=False)
    if done.returncode:
        raise SystemExit(f"{name} of {size}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """The slope of log(seconds - base) over log(size), by least squares. base: what does not grow."""
    base = max(0.0, seconds[0] - seconds[-1] * sizes[0] / sizes[-1])
    points = [(math.log(n), math.log(max(s - base, 1e-4))) for n, s in zip(sizes, seconds, strict=True)]
    middle = [sum(values) / len(points) for values in zip(*points, strict=True)]
    above = sum((x - middle[0]) * (y - middle[1]) for x, y in points)
    return above / sum((x - middle[0]) ** 2 for x, _ in points)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PROGRAMS, action="append")
    parser.add_argument("--most", type=int, default=1 << 30, help="the largest size")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--peer", action="store_true", help="torch.compile's seconds, too")
    parser.add_argument("--detail", action="store_true", help="the seconds of each stage")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.worker[0], int(options.worker[1]), options.device, options.peer)))
        return
    for name in options.only or PROGRAMS:
        sizes = [size for size in PROGRAMS[name][1] if size <= options.most]
        found = []
        for size in sizes:
            row = in_process(name, size, options.device, peer=False)
            found.append((row["seconds"], row["processors"]))
            line = f"{name:16} {size:7} {row['seconds']:8.2f} s {row['processors']:8.2f} s of processors"
            line += f" {row['MiB']:8.1f} MiB"
            if options.peer and size <= PEER_MOST[name]:
                other = in_process(name, size, options.device, peer=True)["seconds"]
                line += f"   torch.compile {other:8.2f} s: {row['seconds'] / other:.2f}"
            print(line, flush=True)
            if options.detail:
                print("   " + "  ".join(f"{stage} {taken:.2f}" for stage, taken in row["stages"].items()), flush=True)
        if len(sizes) > 1:
            seconds, used = ([row[place] for row in found] for place in (0, 1))
            times = f"{seconds[-1] / seconds[0]:.2f} times as long, {used[-1] / used[0]:.2f} of processors"
            print(f"{name:16} exponent {exponent(sizes, seconds):.2f}; {sizes[-1]}: {times}", flush=True)


if __name__ == "__main__":
    main()
