"""Programs of several processes: data parallel and sharded modules, tensor parallel ones, collectives in a program.

Two processes on the CPU (gloo) and, where there are two GPUs, on those (nccl). What a process finds is compared with
eager in that same process, so that both take part in the same collectives.
"""

from __future__ import annotations

import faulthandler
import os
import random
import socket
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import stagefold
from integration_tests.fresh_processes import FRESH
from integration_tests.zoo.devices import TWO_GPUS

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="torch.distributed.is_available() is False"),
    pytest.mark.filterwarnings("ignore"),
]
DRAWN = int(os.environ.get("STAGEFOLD_TEST_PROGRAMS", "16"))
Wrap = Callable[[nn.Module], Callable[[Tensor], Tensor]]


def model(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.0), nn.Linear(16, 4)).to(device)


def train(prepare: Wrap, run: Wrap, device: str, seed: int) -> list[Tensor]:
    """Losses and parameters of four steps."""
    net = model(device)
    prepared = prepare(net)
    step = run(prepared)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(prepared.parameters(), 1e-2)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = step(torch.randn(5, 8, generator=generator).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    whole = [getattr(p, "full_tensor", p.detach)() for p in prepared.parameters()]
    return losses + [p.detach().clone() for p in whole]


def data_parallel(net: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(net)


def _mesh(net: nn.Module) -> DeviceMesh:
    """All processes. (Without it torch takes the GPUs of a machine that has some, whatever the module is on.)"""
    return init_device_mesh(next(net.parameters()).device.type, (dist.get_world_size(),))


def sharded(net: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in net.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=_mesh(net))
    return fully_shard(net, mesh=_mesh(net))


def tensor_parallel(net: nn.Module) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(net, _mesh(net), {"0": ColwiseParallel(), "3": RowwiseParallel()})


def reduced(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def reduced_meanwhile(x: Tensor) -> Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    z = torch.relu(x - 1)
    work.wait()
    return y + z


def reduced_in_part(x: Tensor) -> Tensor:
    """A view, by another operation, in a group that is given. What nobody uses is sent all the same."""
    y, group = x * 2, dist.group.WORLD
    dist.all_reduce(y[1:3], dist.ReduceOp.MAX, group)
    dist.all_reduce(x.sin())
    return y + 1


def gathered(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x * 2)
    return torch.cat(parts) + dist.get_rank()


def gathered_in_one(x: Tensor) -> Tensor:
    rows, others = x.new_empty(8), x.new_empty(8)
    dist.all_gather_into_tensor(rows, x * 2)
    work = dist.all_gather_into_tensor(output_tensor=others, input_tensor=x * 3, async_op=True)
    return rows + 1 if work is None else rows + others * work.wait()


def scattered(x: Tensor) -> Tensor:
    rows, others = x.new_empty(2), x.new_empty(2)
    dist.reduce_scatter_tensor(rows, x * 2)
    dist.reduce_scatter(others, list(x.chunk(2)))
    return rows + others


def exchanged(x: Tensor) -> Tensor:
    rank, rows = dist.get_rank(), torch.empty_like(x)
    dist.all_to_all_single(rows, x * 2)
    parts = x.new_empty(4 * rank + 2)
    dist.all_to_all_single(parts, x * 3, [2 * rank + 1] * 2, [1, 3])
    return torch.cat([rows, parts])


def broadcast(x: Tensor) -> Tensor:
    y = x * 2
    dist.broadcast(y, 1)
    dist.broadcast(x, group_src=0, async_op=True).wait()
    return y + x


class Summed(torch.autograd.Function):
    """The sum over processes, which gives its gradient to each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


def reduced_functionally(x: Tensor) -> Tensor:
    import torch.distributed._functional_collectives as functional

    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


PROGRAMS = (
    *(reduced, reduced_meanwhile, reduced_in_part, reduced_functionally, gathered, gathered_in_one),
    *(scattered, exchanged, broadcast),
)


def run_modules(rank: int, device: str) -> None:
    for prepare, inputs in ((data_parallel, rank), (sharded, rank), (tensor_parallel, 0)):
        expected = train(prepare, lambda net: net, device, inputs)
        torch.testing.assert_close(train(prepare, stagefold.compile, device, inputs), expected, rtol=1e-4, atol=1e-5)
    compiled_inside = train(lambda net: data_parallel(stagefold.compile(net)), lambda net: net, device, rank)
    expected = train(data_parallel, lambda net: net, device, rank)
    torch.testing.assert_close(compiled_inside, expected, rtol=1e-4, atol=1e-5)


def run_collectives(rank: int, device: str) -> None:
    x = torch.arange(4.0, device=device) * (rank + 1)
    for program in PROGRAMS:
        fast = stagefold.compile(program, fullgraph=True)
        for first, second in ((fast, program), (program, fast)):
            # One process runs plain where the other does not: what they send is the same. (Gloo has two ways to reduce
            # and scatter.)
            given, expected = x.clone(), x.clone()
            results = (first if rank or program is scattered else second)(given), program(expected)
            torch.testing.assert_close(results[0], results[1])
            torch.testing.assert_close(given, expected)
    found = [x.clone().requires_grad_() for _ in range(2)]
    for call, leaf in zip((Summed.apply, stagefold.compile(Summed.apply, fullgraph=True)), found, strict=True):
        call(leaf * 2).sin().sum().backward()
    torch.testing.assert_close(found[1].grad, found[0].grad)
    run_plain_collectives(x)


def drawn_program(draw: random.Random) -> Callable[[Tensor], list[Tensor]]:
    """Collectives, waited for at once or later, among sums, products and writes, with gradients through some."""
    steps = [(draw.choice(STEPS), draw.random(), draw.random()) for _ in range(draw.randint(4, 14))]

    def program(x: Tensor) -> list[Tensor]:
        values, pending = [x * 2, x.sin()], []
        for step, first, second in steps:
            a, b = values[int(first * len(values))], values[int(second * len(values))]
            if step is wait and pending:
                work, y = pending.pop(int(first * len(pending)))
                work.wait()
                values.append(y)
            elif step is send:
                y = a.detach() + 1
                pending.append((dist.all_reduce(y, async_op=True), y))
            elif step is not wait:
                values.append(step(a, b))
        for work, y in pending:
            work.wait()
            values.append(y)
        return values

    return program


def wait(a: Tensor, b: Tensor) -> None:
    """For one of the collectives that are on their way."""


def send(a: Tensor, b: Tensor) -> None:
    """What is waited for later."""


def sum_in_place(a: Tensor, b: Tensor) -> Tensor:
    y = a.detach() * b.detach()
    dist.all_reduce(y[1:3])
    return y


def gather(a: Tensor, b: Tensor) -> Tensor:
    rows = a.new_empty(8)
    dist.all_gather_into_tensor(rows, a.detach().contiguous())
    return rows[:4] + b


def write(a: Tensor, b: Tensor) -> Tensor:
    y = a.clone()
    y[:2].mul_(b[2:])
    return y


def sum_with_gradients(a: Tensor, b: Tensor) -> Tensor:
    return Summed.apply(a) + Summed.apply(b.cos())


STEPS = (
    *(torch.add, torch.mul, write, gather, sum_in_place, sum_with_gradients),
    *(send, send, wait, lambda a, b: torch.outer(a, b).mm(torch.outer(b, a)).sum(0).sin()),
)


def run_drawn_programs(rank: int, device: str) -> None:
    draw = random.Random(0)
    for number in range(DRAWN):
        program = drawn_program(draw)
        fast = stagefold.compile(program, fullgraph=True)

        def found(call: Callable[[Tensor], list[Tensor]]) -> list[Tensor]:
            x = torch.linspace(0.1, 0.9, 4, dtype=torch.float64, device=device).mul_(rank + 1).requires_grad_()
            results = call(x)
            (gradient,) = torch.autograd.grad(sum(one.sum() for one in results), x)
            return [*results, gradient]

        # One process runs plain where the other does not.
        plain, mixed = found(program), found(program if rank == number % 2 else fast)
        torch.testing.assert_close(mixed, plain, msg=lambda text, number=number: f"program {number}: {text}")
        torch.testing.assert_close(found(fast), plain, msg=lambda text, number=number: f"program {number}: {text}")


def run_plain_collectives(x: Tensor) -> None:
    """What has no form in documents ends the graph, and so does a collective that the graph does not wait for."""

    def met(x: Tensor) -> Tensor:
        y = x * 2
        dist.barrier()
        return y + 1

    def sent(x: Tensor) -> Tensor:
        y = x * 2
        if dist.get_rank():
            dist.send(y, 0)
        else:
            dist.recv(y, 1)
        return y + 1

    def given_away(x: Tensor) -> Any:
        y = x * 2
        return dist.all_reduce(y, async_op=True), y

    def over_a_break(x: Tensor) -> Tensor:
        y = x * 2
        work = dist.all_reduce(y, async_op=True)
        stagefold.graph_break()
        work.wait()
        return y + 1

    for program in (met, sent, given_away, over_a_break):
        found, expected = stagefold.compile(program)(x), program(x)
        if program is given_away:
            (work, found), (other, expected) = found, expected
            work.wait(), other.wait()
        torch.testing.assert_close(found, expected)
        with pytest.raises(stagefold.StageError, match=r"^BC0"):
            stagefold.compile(program, fullgraph=True)(x)


def process(rank: int, port: int, cache: str, device: str, body: Callable[[int, str], None]) -> None:
    faulthandler.enable()
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), STAGEFOLD_CACHE_DIR=cache)
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
        device = f"cuda:{rank}"
    backend = "nccl" if device.startswith("cuda") else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=2, timeout=timedelta(minutes=2))
    try:
        body(rank, device)
        dist.barrier()  # nobody leaves while another one, or a thread of gloo's, is still at work for it
    finally:
        dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=TWO_GPUS)])
@pytest.mark.parametrize("body", [run_modules, run_collectives, run_drawn_programs])
def test_two_processes_find_what_eager_finds(body: Callable[[int, str], None], device: str, code_cache: Path) -> None:
    mp.start_processes(
        process, (free_port(), str(code_cache), device, body), nprocs=2, start_method=FRESH.get_start_method()
    )
