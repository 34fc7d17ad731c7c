"""What programs do with tensors: attention, sizes that data decides, writes, random numbers, kinds of tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map_only

from integration_tests.features.probe import Probes, matrix

attention = Probes("FlexAttention")


def heads(size: int, count: int = 4) -> Tensor:
    return matrix(size * count, 16).view(1, count, size, 16)


def attended(size: int) -> tuple[Tensor, Tensor, Tensor]:
    return heads(size), heads(size, 2) * 0.5, heads(size, 2) + 0.1


@attention("score_mod")
def with_score() -> Any:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, lambda score, b, h, i, j: score + (j - i) * 0.1, enable_gqa=True)

    return program, attended


@attention("a score_mod that captures a tensor, the logsumexp returned")
def with_bias() -> Any:
    bias = torch.linspace(0, 1, 4)

    def program(q: Tensor, k: Tensor, v: Tensor) -> Any:
        def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return torch.tanh(score) * bias[h]

        return flex_attention(q, k, v, mod, enable_gqa=True, return_lse=True)

    return program, attended


@attention("a block mask that the program makes")
def with_mask() -> Any:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Any:
        blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, q.shape[2], k.shape[2], device=q.device)
        return flex_attention(q, k, v, block_mask=blocks, enable_gqa=True)

    return program, attended


data = Probes("Data decides")


@data("a branch on a tensor", outcome="with breaks")
def branch(x: Tensor) -> Tensor:
    return x + 1 if x.max() > 0 else x - 1


@data("x[mask]", trains=True)
def selected(x: Tensor) -> Tensor:
    return x[x > 0] * 2


@data("nonzero and unique")
def places(x: Tensor) -> Any:
    return torch.nonzero(x > 0), torch.unique((x * 2).long())


@data("item() as a size")
def counted() -> Any:
    def program(x: Tensor, count: Tensor) -> Tensor:
        number = count.item()
        torch._check(number <= x.shape[0])
        return x[:number].sum() + torch.zeros(number).numel()

    return program, lambda size: (matrix(size), torch.tensor(4))


@data("item() in arithmetic")
def scaled(x: Tensor) -> Any:
    return x * x.max().item(), int(x.argmax())


@data("repeat_interleave by counts", trains=True)
def repeated() -> Any:
    return (
        lambda x, counts: torch.repeat_interleave(x, counts, 0),
        lambda size: (matrix(size), torch.arange(size)),
    )


writes = Probes("Writes and views")


@writes("inputs written in place")
def in_place(x: Tensor) -> Tensor:
    x.add_(1)
    x[:2] = 0
    return x * 2


@writes("results that are views of inputs", trains=True)
def views(x: Tensor) -> Any:
    return x[1:].t(), x.view(-1)[::2], x


@writes("writes through views", trains=True)
def through_views(x: Tensor) -> Tensor:
    y = x * 1
    y.t()[0].mul_(3)
    return y


@writes("out= arguments")
def out(x: Tensor) -> Tensor:
    result = torch.empty_like(x)
    torch.exp(x, out=result)
    return result


@writes(".data, detach_ and set_")
def data_attribute(x: Tensor) -> Tensor:
    y = x * 2
    y.data.mul_(2)
    return y.detach_()


random = Probes("Random numbers")


@random("dropout and noise", trains=True)
def noise(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5) + torch.rand_like(x) + torch.randn(x.shape, device=x.device) + torch.bernoulli(x.sigmoid())


@random("a generator of the program's", outcome="with breaks")
def generator() -> Any:
    made = torch.Generator(torch.get_default_device())

    def program(x: Tensor) -> Tensor:
        return x + torch.rand(8, generator=made.manual_seed(3), device=x.device)

    return program, lambda size: (matrix(size),)


@random("torch.manual_seed")
def seeded(x: Tensor) -> Tensor:
    torch.manual_seed(5)
    return x + torch.rand(8, device=x.device)


@random("a random.Random with a seed")
def seeded_stream(x: Tensor) -> Any:
    import random as python

    stream = python.Random(3)
    rows = list(x[:4])
    stream.shuffle(rows)
    return stream.uniform(0, 1) * torch.stack(rows)


@random("random of the process")
def python_random(x: Tensor) -> Any:
    import random as python

    python.seed(1)
    scale, count = python.uniform(0, 2), python.randint(1, 5)
    return x * scale + python.gauss(0, 1) / count, x[:count], int(scale * 10)


@random("a random.Random from outside, after several calls")
def outside_stream() -> Any:
    import random as python

    stream = python.Random("text")

    def program(x: Tensor) -> Any:
        order = [0, 1, 2, 3]
        stream.shuffle(order)
        return x[torch.tensor(order)] * stream.random(), stream.choice([1.0, 2.0])

    return program, lambda size: (matrix(size),)


@random("numpy.random of the process", outcome="with breaks")
def numpy_random(x: Tensor) -> Any:
    import numpy as np

    np.random.seed(1)
    return x * float(np.random.rand())


kinds = Probes("Kinds of tensors")


class Named(Tensor):
    """A subclass by __torch_function__ alone."""


@kinds("a subclass by __torch_function__, in and out")
def named() -> Any:
    return (lambda x: torch.sin(x) + 1), lambda size: (matrix(size).as_subclass(Named),)


@kinds("a wrapper class by __torch_dispatch__")
def wrapped() -> Any:
    return (lambda x: torch.sin(x) * 2 + x.sum()), lambda size: (TwoTensor(matrix(size), matrix(size) * 2),)


@kinds("gradients of a wrapper class", trains=True)
def wrapped_training() -> Any:
    return (lambda x: torch.sin(x) * x), lambda size: (TwoTensor(matrix(size), matrix(size) * 2),)


class Quantized(Tensor):
    """A weight in int8 with one scale, which every operation dequantizes."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: Tensor, scale: Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype)

    def __init__(self, numbers: Tensor, scale: Tensor) -> None:
        self.numbers, self.scale = numbers, scale

    def __tensor_flatten__(self) -> Any:
        return ["numbers", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, outer_size: Any, outer_stride: Any) -> Any:
        return cls(inner["numbers"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].numbers.detach(), args[0].scale.detach())
        return func(*tree_map_only(cls, lambda given: given.numbers * given.scale, args), **(kwargs or {}))


@kinds("gradients through a weight in int8", trains=True)
def quantized() -> Any:
    numbers = (matrix(4) * 50).round().to(torch.int8)
    weight = Quantized(numbers, torch.tensor(0.02))
    return (lambda x: torch.relu(nn.functional.linear(x, weight))), lambda size: (matrix(size),)


@kinds("a wrapper class that the program makes")
def wrapped_inside(x: Tensor) -> Any:
    return (TwoTensor(x, x + 1) * 2).a


@kinds("a wrapper class as a parameter")
def wrapped_weight() -> Any:
    module = nn.Linear(8, 4)
    weight = module.weight.detach()
    module.weight = nn.Parameter(TwoTensor(weight, weight.clone()), requires_grad=False)
    return module, lambda size: (matrix(size),)


@kinds("jagged nested tensors", trains=True)
def jagged() -> Any:
    def make(size: int) -> tuple[Tensor]:
        return (torch.nested.nested_tensor([matrix(size), matrix(3)], layout=torch.jagged),)

    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4), nn.GELU(), nn.Softmax(-1)), make


def mesh() -> DeviceMesh:
    """Of this process alone (`integration_tests/test_dtensor.py` has two); `outcome_of` takes it down."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    return init_device_mesh("cpu", (1,))


@kinds("DTensors that the program makes", trains=True)
def distributed() -> Any:
    one = mesh()

    def program(x: Tensor) -> Tensor:
        rows = DTensor.from_local(x * 2, one, [Shard(0)])
        return (rows.t() @ rows).redistribute(placements=[Replicate()]).to_local()

    return program, lambda size: (matrix(size),)


@kinds("a module by parallelize_module", trains=True)
def tensor_parallel() -> Any:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(module, mesh(), plan), lambda size: (matrix(size),)


@kinds("a DTensor that is written in place", trains=True)
def distributed_in_place() -> Any:
    one = mesh()

    def program(x: Tensor) -> Tensor:
        rows = DTensor.from_local(x * 2, one, [Shard(0)])
        rows += rows * 3
        return rows.mul_(2).sin().to_local()

    return program, lambda size: (matrix(size),)


@kinds("collectives that write into tensors", on_gpu="with breaks")
def collectives() -> Any:
    mesh()

    def program(x: Tensor) -> Tensor:
        y, parts = x * 2, [torch.empty_like(x)]
        dist.all_reduce(y)
        dist.all_gather(parts, y + 1)
        return parts[0] * dist.get_world_size()

    return program, lambda size: (matrix(size),)


@kinds("collectives with async_op, broadcast")
def collectives_meanwhile() -> Any:
    mesh()

    def program(x: Tensor) -> Tensor:
        y = x * 2
        dist.broadcast(y, 0)
        work = dist.all_reduce(y, async_op=True)
        z = x.sin()
        work.wait()
        return y + z

    return program, lambda size: (matrix(size),)


@kinds("complex numbers", trains=True)
def complex_numbers(x: Tensor) -> Tensor:
    z = torch.complex(x, x + 1)
    return (z * z.conj()).real + z.abs()


@kinds("fft", trains=True)
def spectra(x: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(x) * 2, n=8)


@kinds("sparse tensors", outcome="with breaks")
def sparse(x: Tensor) -> Tensor:
    return torch.sparse.mm((x * (x > 1)).to_sparse(), x.t())


@kinds("bfloat16 under autocast", trains=True)
def autocast() -> Any:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.inner(x).float()

    return Cast(), lambda size: (matrix(size),)


@kinds("int8 products")
def integers() -> Any:
    def make(size: int) -> tuple[Tensor, Tensor]:
        return torch.arange(size * 32).view(size, 32).to(torch.int8), torch.arange(32 * 8).view(32, 8).to(torch.int8)

    return torch._int_mm, lambda size: make(size * 8)
