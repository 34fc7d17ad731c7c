"""Programs on DTensors, and with functional collectives, are one graph: two processes on the CPU (gloo), beside eager.

What a process finds is compared with eager in that same process, so that both take part in the same collectives.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import stagefold
from integration_tests.fresh_processes import FRESH

if dist.is_available():
    import torch.distributed._functional_collectives as functional
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, full, ones
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch.distributed.is_available() is False")
# Before 2.12 torch has no gradients of topk and cumsum of DTensors, and reads numbers out of tensors for max.
OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12)
WORLD = 2
ROWS, COLUMNS, WHOLE = 0, 1, None


def numbers(*shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).view(shape).div(7).sin()


class Programs:
    """One mesh, and tensors on it."""

    def __init__(self) -> None:
        self.mesh = init_device_mesh("cpu", (WORLD,))

    def spread(self, dim: int | None, tensor: Tensor | None = None) -> Tensor:
        placement = Replicate() if dim is None else Shard(dim)
        return distribute_tensor(numbers(4, 8) if tensor is None else tensor, self.mesh, [placement])

    def on_dtensors(self) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
        """Programs, and what they are given."""
        mesh, spread, x = self.mesh, self.spread, numbers(4, 8)
        return {
            "pointwise": (lambda a: torch.relu(a * 2) + a, (spread(ROWS),)),
            "gathered": (lambda a: (a * 2).redistribute(placements=[Replicate()]) * 3, (spread(ROWS),)),
            "scattered": (lambda a: (a * 2).redistribute(mesh, [Shard(-1)]) * 3, (spread(WHOLE),)),
            "exchanged": (lambda a: (a * 2).redistribute(placements=[Shard(1)], async_op=True) * 3, (spread(ROWS),)),
            "local": (lambda a: (a * 2).to_local() + 1, (spread(ROWS),)),
            "made of local": (lambda a: DTensor.from_local(a * 2, mesh, [Shard(0)]) + 1, (x,)),
            "made of nothing": (
                lambda a: a * full((4, 8), 3.0, device_mesh=mesh, placements=[Shard(0)]) + ones(4, 8, device_mesh=mesh),
                (spread(ROWS),),
            ),
            "distributed": (
                lambda a: DTensor.from_local(a, mesh) * distribute_tensor(a.detach() * 2, mesh, [Replicate()]),
                (x,),
            ),
            "in between": (lambda a: DTensor.from_local(a * 2, mesh, [Shard(0)]).exp().to_local().cos(), (x,)),
            "a sum over processes": (lambda a: a.sin().sum().full_tensor() + 1, (spread(ROWS),)),
            "a product": (lambda a, b: (a @ b.t()).redistribute(placements=[Shard(0)]), (spread(1), spread(1))),
            "a sum that stays in parts": (lambda a, b: a @ b.t(), (spread(COLUMNS), spread(COLUMNS))),
            "implicit exchange": (lambda a, b: (a + b).sin(), (spread(ROWS), spread(COLUMNS))),
            "views": (lambda a: a.view(2, 2, 8).transpose(1, 2).reshape(16, 2) * 2, (spread(ROWS),)),
            "views as results": (lambda a: (a.view(2, 2, 8), a.t(), a * 2), (spread(ROWS),)),
            "nothing to exchange": (lambda a: a.redistribute(placements=[Shard(0)]), (spread(ROWS),)),
            "a part as result": (lambda a: a.to_local(), (spread(ROWS),)),
            "a part that is whole": (lambda a: a.to_local(grad_placements=[Partial()]), (spread(WHOLE),)),
            "of a part, as result": (lambda a: DTensor.from_local(a, mesh, [Shard(0)]), (x,)),
            "uneven": (lambda a: (a * 2).redistribute(placements=[Replicate()]), (spread(ROWS, numbers(3, 8)),)),
            "one row": (lambda a: (a * 2).redistribute(placements=[Replicate()]), (spread(ROWS, numbers(1, 8)),)),
            "no row": (lambda a: a * 2 + 1, (spread(ROWS, numbers(0, 8)),)),
            "no dimension": (lambda a: a * 2 + 1, (spread(WHOLE, numbers(1)[0]),)),
            "bfloat16": (lambda a: (a @ a.t()).redistribute(placements=[Replicate()]), (spread(0, x.bfloat16()),)),
            "written in place": (lambda a: ((b := a * 2).add_(1).relu_(), b.sin()), (spread(ROWS),)),
            "sums in place": (in_place, (spread(ROWS), spread(COLUMNS))),
            "softmax": (lambda a: a.softmax(0), (spread(ROWS),)),
            **(
                {}
                if OLD
                else {"gathered for the operation": (lambda a: (a.topk(2, 0), a.max(0), a.cumsum(0)), (spread(ROWS),))}
            ),
            "dropout": (lambda a: F.dropout(a, 0.5) * 2, (spread(ROWS),)),
            "placements read": (lambda a: a * (2 if a.placements == (Shard(0),) else 3), (spread(ROWS),)),
            "mesh read": (lambda a: a * a.device_mesh.size() + a.device_mesh.get_local_rank(), (spread(ROWS),)),
            "a mesh given": (lambda a, m: DTensor.from_local(a, m, [Replicate()]) * 2, (x, mesh)),
            "a layout given": (lambda a, p: (a * 2).redistribute(placements=[p]), (spread(WHOLE), Shard(1))),
            "the class": (lambda a: a * 2 if isinstance(a, DTensor) else a * 3, (spread(ROWS),)),
            "several results": (lambda a: {"a": a * 3, "b": [a * 2, (a * 4).to_local()]}, (spread(ROWS),)),
            "summed": (lambda a: functional.all_reduce(a * 2, "sum", mesh) + 1, (x,)),
            "summed in a group": (lambda a: functional.all_reduce(a * 2, "sum", dist.group.WORLD) + 1, (x,)),
            "rows gathered": (lambda a: functional.all_gather_tensor(a * 2, 0, mesh).sin(), (x,)),
            "columns gathered": (lambda a: functional.all_gather_tensor(a * 2, 1, mesh).sin(), (x,)),
            "sums spread": (lambda a: functional.reduce_scatter_tensor(a * 2, "sum", 0, mesh).sin(), (x,)),
            "rows exchanged": (lambda a: functional.all_to_all_single(a * 2, None, None, mesh).sin(), (x,)),
            "a group read": (lambda a: a * mesh.get_group().size() + dist.get_rank(), (x,)),
            "a sum given": (lambda a: a * 2, (DTensor.from_local(x, mesh, [Partial()]),)),
        }

    def training(self) -> dict[str, tuple[Callable[[], nn.Module], Tensor]]:
        """What makes the modules, and their input."""
        x, y = numbers(4, 8), numbers(2, 4, 8)

        def perceptron(**last: Any) -> nn.Module:
            net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
            return self.parallel(net, {"0": ColwiseParallel(), "2": RowwiseParallel(**last)})

        def block(on_sequence: bool) -> nn.Module:
            inner, outer = (ColwiseParallel(), RowwiseParallel())
            norms = {}
            if on_sequence:
                inner, outer = ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(output_layouts=Shard(1))
                norms = {"norm": SequenceParallel(), "norm2": SequenceParallel()}
            names = {**dict.fromkeys(("q", "k", "v", "up"), inner), **dict.fromkeys(("o", "down"), outer)}
            return self.parallel(Block(), names | norms)

        def embedding() -> nn.Module:
            net = nn.Sequential(nn.Embedding(6, 8), nn.LayerNorm(8), nn.Linear(8, 6))
            rows = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
            last = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
            return self.parallel(net, {"0": rows, "1": SequenceParallel(), "2": last})

        shard = y.chunk(WORLD, 1)[dist.get_rank()]
        return {
            "perceptron": (perceptron, x),
            "perceptron with DTensors as results": (
                lambda: perceptron(output_layouts=Shard(0), use_local_output=False),
                x,
            ),
            "transformer block": (lambda: block(False), y),
            "transformer block, norms on parts of the sequence": (lambda: block(True), shard),
            "embedding by rows": (embedding, torch.tensor([[0, 5, 3, 2]])),
        }

    def parallel(self, net: nn.Module, plan: Any) -> nn.Module:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.normal_(0, 0.3, generator=generator)
        return parallelize_module(net, self.mesh, plan)


def in_place(a: Any, b: Any) -> Any:
    """Two names of one tensor, and what was computed of it before."""
    total = held = a.sin()
    before = total * 3
    total += b
    total.mul_(b)
    return held + before, F.relu(held * 2, inplace=True)


class Block(nn.Module):
    """A transformer block, two heads, one in each process."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        # (A bias of the keys has no gradient but rounding.)
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=name != "k") for name in "qkvo")
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        q, k, v = (part(normed).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


# -- comparisons


def whole(tensor: Any) -> Any:
    """A tensor with what all processes have of it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def check_alike(found: Any, expected: Any) -> None:
    """Of one class and layout, with the same numbers in this process. (Results of collectives need no wait.)"""
    for one, other in zip(*map(torch.utils._pytree.tree_leaves, (found, expected)), strict=True):
        kind = Tensor if isinstance(other, functional.AsyncCollectiveTensor) else type(other)
        assert type(one) is kind
        if isinstance(other, DTensor):
            assert (one.placements, one.stride()) == (other.placements, other.stride())
            one, other = one.to_local(), other.to_local()
        torch.testing.assert_close(one, other.clone() if kind is Tensor else other)


def differentiable(given: Any) -> Any:
    copies = (one.detach().clone() if isinstance(one, Tensor) else one for one in given)
    return [one.requires_grad_() if isinstance(one, Tensor) else one for one in copies]


def gradients(program: Callable[..., Any], given: Any) -> tuple[Any, list[Tensor]]:
    torch.manual_seed(3)
    result = program(*given)
    parts = [whole(leaf).float() for leaf in torch.utils._pytree.tree_leaves(result)]
    sum((part.sin().sum() for part in parts), torch.zeros(())).backward()
    return result, [one.grad for one in given if isinstance(one, Tensor)]


def train(net: nn.Module, step: Callable[..., Any], x: Tensor) -> list[Any]:
    """Losses, and gradients and parameters of three steps."""
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    found: list[Any] = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = whole(step(x)).square().mean()
        loss.backward()
        found += [loss.detach(), *[whole(p.grad) for p in net.parameters()]]
        optimizer.step()
    return found + [whole(p.detach()) for p in net.parameters()]


class Counting:
    """A back end that counts the captures."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, module: Any, inputs: Any) -> Any:
        self.count += 1
        return module


# -- what a process does


def run_programs(programs: Programs) -> None:
    for name, (program, given) in programs.on_dtensors().items():
        compiled = stagefold.compile(program, fullgraph=True)
        for _ in range(2):
            torch.manual_seed(dist.get_rank())
            expected = program(*given)
            torch.manual_seed(dist.get_rank())
            with saying(name):
                check_alike(compiled(*given), expected)


def run_gradients(programs: Programs) -> None:
    for name, (program, given) in programs.on_dtensors().items():
        with saying(name):
            expected, wanted = gradients(program, differentiable(given))
            found, got = gradients(stagefold.compile(program, fullgraph=True), differentiable(given))
            check_alike(found, expected)
            check_alike(got, wanted)
    run_gradients_across_the_graph(programs)


def run_memory(programs: Programs) -> None:
    """Views of what is given share its memory."""
    for program in (lambda a: a.t(), lambda a: a.to_local(), lambda a: a.redistribute(placements=[Shard(0)])):
        for requires_grad in (False, True):
            given = programs.spread(ROWS).requires_grad_(requires_grad)
            found = stagefold.compile(program, fullgraph=True)(given).detach()
            (found.to_local() if isinstance(found, DTensor) else found).zero_()
            assert not given.to_local().any()


def run_gradients_across_the_graph(programs: Programs) -> None:
    """What is computed outside, before and behind, in layouts of its own."""

    def outcome(compiled: Callable[..., Any]) -> list[Tensor]:
        a, b = (programs.spread(COLUMNS).requires_grad_() for _ in range(2))
        product = compiled(a @ b.t())  # a sum in parts goes in
        product.redistribute(placements=[Shard(1)], async_op=True).to_local().sin().sum().backward()
        c = programs.spread(ROWS).requires_grad_()
        on_its_way = programs.spread(COLUMNS).redistribute(placements=[Shard(0)], async_op=True)
        compiled(c).backward(on_its_way)
        d, e = programs.spread(COLUMNS).requires_grad_(), numbers(4, 8).requires_grad_()
        found = [compiled((d * 3).redistribute(placements=[Shard(0)], async_op=True))]
        found.append(compiled(functional.all_reduce(e * 3, "sum", programs.mesh)))  # it comes when it is needed
        sum(whole(one).sin().sum() for one in found).backward()
        return [*map(whole, found), *[whole(one.grad) for one in (a, b, c, d, e)]]

    program: Callable[..., Any] = lambda a: a * 2 + 1  # noqa: E731
    torch.testing.assert_close(outcome(stagefold.compile(program, fullgraph=True)), outcome(program))


def run_modules(programs: Programs) -> None:
    for name, (make, x) in programs.training().items():
        with saying(name):
            eager, net = make(), make()
            compiled = stagefold.compile(net, fullgraph=True)
            with torch.no_grad():
                torch.testing.assert_close(whole(compiled(x)), whole(eager(x)) + 0)
            torch.testing.assert_close(train(net, compiled, x), train(eager, eager, x), rtol=1e-4, atol=1e-5)
            layouts = [[getattr(p.grad, "placements", None) for p in each.parameters()] for each in (net, eager)]
            if isinstance(net, nn.Sequential):
                run_layers(make, x)
            else:
                assert layouts[0] == layouts[1]  # gradients of norms stay sums in parts
                check_collectives(make(), x)


def check_collectives(net: nn.Module, x: Tensor) -> None:
    """The graph has as many as eager: what q, k and v leave in parts is added up first."""
    with CommDebugMode() as eager:
        net(x).sum().backward()
    functions = stagefold.explain(net, x).graphs[0].functions
    nodes = [node for function in functions for part in (function.forward, function.backward) for node in part.nodes]
    sent = [node for node in nodes if node.target.startswith("_c10d_functional.") and "wait" not in node.target]
    assert len(sent) == eager.get_total_counts() > 0


def run_layers(make: Callable[[], nn.Module], x: Tensor) -> None:
    """Layers compiled one by one: what comes from one to the next may be on its way."""
    eager, net = make(), make()
    for name, layer in net.named_children():
        setattr(net, name, stagefold.compile(layer, fullgraph=True))
    torch.testing.assert_close(train(net, net, x), train(eager, eager, x), rtol=1e-4, atol=1e-5)


def run_guards(programs: Programs) -> None:
    mesh, spread, counting = programs.mesh, programs.spread, Counting()
    program: Callable[..., Any] = lambda a: (a * 2).sum(0)  # noqa: E731
    compiled = stagefold.compile(program, fullgraph=True, backend=counting)
    for captures, dim in ((1, ROWS), (1, ROWS), (2, WHOLE), (3, COLUMNS), (3, ROWS), (3, WHOLE)):
        check_alike(compiled(spread(dim)), program(spread(dim)))
        assert counting.count == captures
    check_alike(compiled(spread(ROWS, numbers(6, 8))), program(spread(ROWS, numbers(6, 8))))  # another size
    again = init_device_mesh("cpu", (WORLD,))
    on_another_mesh = distribute_tensor(numbers(4, 8), again, [Shard(0)])
    check_alike(compiled(on_another_mesh), program(on_another_mesh))
    assert counting.count == 4  # the mesh is another, and the graph is the same
    of_sizes = stagefold.compile(lambda a: DTensor.from_local(a, mesh, [Shard(0)]).sum(0).full_tensor(), fullgraph=True)
    made = stagefold.compile(lambda a: ones(a.shape[0], 8, device_mesh=mesh) * a.sum(), fullgraph=True)
    for size in (2, 3, 5, 2):
        x = numbers(size, 8)
        check_alike(made(x), ones(size, 8, device_mesh=mesh) * x.sum())
        torch.testing.assert_close(of_sizes(x), (x.sum(0) * WORLD))


def run_alone(programs: Programs) -> None:
    """One process compiles again, or breaks its graph, where the other does not: their collectives still meet."""
    counting = Counting()
    rank = dist.get_rank()

    def program(a: Tensor, scale: int, kind: str) -> Tensor:
        a = (a * scale).redistribute(placements=[Replicate()])
        if kind == "breaks":
            stagefold.graph_break()
        return (a + 1).redistribute(placements=[Shard(1)])

    compiled = stagefold.compile(program, backend=counting, dynamic=False)
    for scale, kind in ((2, ""), (3 if rank else 2, ""), (2, "breaks" if rank else ""), (4, "")):
        check_alike(compiled(programs.spread(ROWS), scale, kind), program(programs.spread(ROWS), scale, kind))
    assert counting.count == (5 if rank else 2)


def run_plain(programs: Programs) -> None:
    """What is not captured ends the graph, with eager's results, and leaves torch's own books as they were."""
    mesh, x = programs.mesh, numbers(4, 8)

    def looked_up(a: Tensor, indices: Tensor) -> Tensor:
        found = F.embedding(indices, a)
        stagefold.graph_break()
        return found.redistribute(placements=[Replicate()])

    def with_loss(a: Tensor) -> Tensor:
        with loss_parallel():
            return F.cross_entropy(a, torch.tensor([1, 2, 3, 4]))

    indices = programs.spread(WHOLE, torch.tensor([0, 3, 1]))
    for program, given, code in (
        (lambda a: DTensor.from_local(a, mesh, [Replicate()], run_check=True) * 2, (x,), "BC"),
        (lambda a: distribute_tensor(a * 2, mesh, [Shard(0)]) * 2, (x,), "BC002"),
        (lambda a: a * 2 if torch.equal(a, a) else a, (programs.spread(ROWS),), "BC004"),
        (looked_up, (programs.spread(ROWS), indices), "BC"),
        (with_loss, (programs.spread(COLUMNS),), "BC"),
    ):
        expected = program(*given)
        check_alike(stagefold.compile(program)(*given), expected)
        check_alike(program(*given), expected)
        with pytest.raises(stagefold.StageError, match=code):
            stagefold.compile(program, fullgraph=True)(*given)


class saying:
    """Has an error say what was run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is not None:
            error.add_note(f"in {self.name!r}")


def process(rank: int, store: str, cache: str) -> None:
    warnings.simplefilter("ignore")
    os.environ["STAGEFOLD_CACHE_DIR"] = cache
    torch.set_num_threads(1)
    files = dist.FileStore(store, WORLD)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, store=files, timeout=timedelta(minutes=5))
    try:
        for body in (run_programs, run_memory, run_guards, run_alone, run_plain, run_gradients, run_modules):
            body(Programs())
            dist.barrier()  # nobody leaves while another one, or a thread of gloo's, is still at work for it
    finally:
        dist.destroy_process_group()


def test_two_processes_find_what_eager_finds(code_cache: Path, tmp_path: Path) -> None:
    arguments = (str(tmp_path / "store"), str(code_cache))
    mp.start_processes(process, arguments, nprocs=WORLD, start_method=FRESH.get_start_method())
