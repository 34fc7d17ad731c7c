"""Training on several GPUs, a process each: milliseconds of a step of eager, torch.compile and stagefold, in turns.

    python benchmarks/several_ranks.py [--ranks 2] [--layers 8] [--width 2048] [--words 1024] [--batch 4] [--no-peer]
                                       [--only ddp fsdp "fsdp, blocks" "tensor parallel"]

A decoder of transformer blocks in bfloat16; a step is forward, backward and an optimizer's step. ddp: one copy a rank.
fsdp: `fully_shard` of each block and of the whole, compiled as a whole; blocks: each block compiled by itself. tensor
parallel: attention and MLP of each block by columns and rows. Times are medians over rounds of the slowest rank's;
memory is the peak of a step above what is there before it. The loss of the fifth step is compared with eager's.
--device cpu: gloo, to try the program.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import stagefold

Compiler = Callable[[Any], Any]
ROUNDS, STEPS = 7, 5
WORDS = 8192


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head = width // heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        parts = [f(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for f in (self.query, self.key, self.value)]
        return self.out(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.attention = nn.RMSNorm(width), Attention(width, max(1, width // 128))
        self.second, self.mlp = nn.RMSNorm(width), Gated(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Decoder(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), tokens.flatten())


def ddp(model: Decoder, compiler: Compiler, device: torch.device) -> nn.Module:
    return compiler(DistributedDataParallel(model, [device.index] if device.type == "cuda" else None))


def fsdp(model: Decoder, compiler: Compiler, device: torch.device) -> nn.Module:
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return compiler(model)


def fsdp_blocks(model: Decoder, compiler: Compiler, device: torch.device) -> nn.Module:
    fsdp(model, lambda each: each, device)
    for block in model.blocks:
        block.forward = compiler(block.forward)
    return model


def tensor_parallel(model: Decoder, compiler: Compiler, device: torch.device) -> nn.Module:
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    columns, rows = (
        ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up"),
        ("attention.out", "mlp.down"),
    )
    plan = {**{name: ColwiseParallel() for name in columns}, **{name: RowwiseParallel() for name in rows}}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return compiler(model)


CASES = {"ddp": ddp, "fsdp": fsdp, "fsdp, blocks": fsdp_blocks, "tensor parallel": tensor_parallel}


def worker(rank: int, given: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=given.port)
    device = torch.device(given.device, rank) if given.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=rank, world_size=given.ranks)
    compilers: dict[str, Compiler] = {"eager": lambda each: each, "stagefold": stagefold.compile}
    if not given.no_peer:
        compilers["torch.compile"] = torch.compile
    if rank == 0:
        print("| case | " + " | ".join(f"{name}, ms | MiB" for name in compilers) + " | over eager | loss |")
    for name in given.only or CASES:
        row = [measure(CASES[name], compiler, given, device) for compiler in compilers.values()]
        if rank == 0:
            cells = " | ".join(f"{seconds * 1e3:.2f} | {memory:.0f}" for seconds, memory, _ in row)
            shares = " / ".join(f"{seconds / row[0][0]:.2f}" for seconds, _, _ in row[1:])
            off = max(abs(loss - row[0][2]) for _, _, loss in row)
            print(f"| {name} | {cells} | {shares} | {off:.1e} |", flush=True)
    dist.destroy_process_group()


def measure(
    make: Callable[..., nn.Module], compiler: Compiler, given: argparse.Namespace, device: torch.device
) -> tuple[float, float, float]:
    """Seconds of a step of the slowest rank, MiB of its peak, the loss of step five."""
    torch.manual_seed(0)
    model = make(Decoder(given.layers, given.width).to(device, torch.bfloat16), compiler, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)  # DTensors and tensors do not mix
    tokens = torch.randint(0, WORDS, (given.batch, given.words), device=device)

    def step() -> Tensor:
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def synchronize() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    for _ in range(STEPS):
        loss = step()
    peak = 0.0
    if device.type == "cuda":
        synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        synchronize()
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    times = []
    for _ in range(ROUNDS):
        dist.barrier()
        start = synchronize()
        for _ in range(STEPS):
            step()
        times.append((synchronize() - start) / STEPS)
    slowest = torch.tensor([statistics.median(times), peak, float(loss)], device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    seconds, memory, last = slowest.tolist()
    return seconds, memory, last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--words", type=int, default=1024, help="of a sequence")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", choices=CASES)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--port", default="29511")
    mp.spawn(worker, (given := parser.parse_args(),), nprocs=given.ranks)


if __name__ == "__main__":
    main()
