"""How long the first call takes to capture, beside torch.compile(backend="eager"), in one run.

    python benchmarks/capture_time.py [--rounds 3] [--only mlp]

Each measurement is a process of its own (cold: nothing was captured in it before; imports are not counted, a plain
step has run). No code is generated: both run the captured graph with eager torch. The best of the rounds is printed, in
seconds, with the ratio.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Step = Callable[[Callable[..., Any]], Any]


def mlp() -> tuple[nn.Module, Step]:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    x = torch.randn(4, 32)
    return model, lambda call: call(x).sum().backward()


def resnet() -> tuple[nn.Module, Step]:
    """Eight residual blocks of convolutions and batch norms."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
            self.norm1, self.norm2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.norm1(self.first(x)))
            return torch.relu(self.norm2(self.second(y)) + x)

    model = nn.Sequential(*(Block() for _ in range(8)))
    x = torch.randn(2, 8, 16, 16)
    return model, lambda call: call(x).sum().backward()


def gpt2() -> tuple[nn.Module, Step]:
    """transformers' GPT-2 of six layers, training with labels."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=6, n_embd=64, n_head=4, vocab_size=128, n_positions=32, use_cache=False)
    config.bos_token_id = config.eos_token_id = 0
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # else the first call logs, where torch.compile breaks
    tokens = torch.randint(0, 128, (2, 16))
    return model, lambda call: call(input_ids=tokens, labels=tokens).loss.backward()


PROGRAMS = {"mlp": mlp, "resnet": resnet, "gpt2": gpt2}


def compile_ours(model: nn.Module) -> Callable[..., Any]:
    import stagefold

    return stagefold.compile(model, backend="eager", fullgraph=True)


def compile_theirs(model: nn.Module) -> Callable[..., Any]:
    import torch._dynamo

    return torch.compile(model, backend="eager", fullgraph=True, dynamic=False)


COMPILERS = {"ours": compile_ours, "theirs": compile_theirs, "plain": lambda model: model}


def measure(program: str, compiler: str) -> float:
    """Seconds of the first step, in this process."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, step = PROGRAMS[program]()
    step(model)
    call = COMPILERS[compiler](model)
    start = time.perf_counter()
    step(call)
    return time.perf_counter() - start


def measure_apart(program: str, compiler: str) -> float:
    command = [sys.executable, __file__, "--measure", program, compiler]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=PROGRAMS)
    parser.add_argument("--measure", nargs=2, metavar=("PROGRAM", "COMPILER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    print(
        f"torch {torch.__version__}\n{'seconds of the first step':26}{'plain':>9}{'ours':>9}{'compile':>9}{'ratio':>8}"
    )
    for program in [options.only] if options.only else PROGRAMS:
        best = dict.fromkeys(COMPILERS, float("inf"))
        for _ in range(options.rounds):
            for compiler in COMPILERS:
                best[compiler] = min(best[compiler], measure_apart(program, compiler))
        ratio = (best["ours"] - best["plain"]) / (best["theirs"] - best["plain"])
        print(f"{program:26}{best['plain']:9.3f}{best['ours']:9.3f}{best['theirs']:9.3f}{ratio:8.2f}", flush=True)


if __name__ == "__main__":
    main()
