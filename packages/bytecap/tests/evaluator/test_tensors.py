"""Programs run plain and captured: tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import Variable

from bytecap.testing import Programs

PROGRAMS = Programs()


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def matrix() -> torch.Tensor:
    return tensor(3, 4)


@PROGRAMS.add(matrix)
def slices(x):
    return x[1:], x[:, None], x[..., 0], x[::2, 1], x[[0, 2]], x[x > 0].shape if False else None


@PROGRAMS.add(matrix)
def sizes(x):
    b, c = x.shape
    return (
        x.view(-1),
        x.reshape(c, b),
        x.numel(),
        x.size(),
        x.shape[-1] * 2,
        (*x.shape, 1),
        list(x.shape),
        x.stride(),
        x.ndim,
        len(x),
        torch.zeros(x.shape),
        x.new_zeros(2, b),
        torch.arange(b),
        x.expand(2, *x.shape),
    )


@PROGRAMS.add(matrix)
def unbind(x):
    return [r.sum() for r in x], [*x.split(2, 1)], x.chunk(2, 1), torch.max(x, dim=1), x.topk(2), x.sort(), x.max(0)[0]


@PROGRAMS.add(matrix)
def casts(x):
    return (
        x.to(torch.float64),
        x.float(),
        x.type(torch.int32),
        x.long(),
        x.to(x.dtype),
        x.cpu(),
        x.contiguous(),
        x.detach(),
        x.clone(),
        x.data,
    )


@PROGRAMS.add(matrix)
def legacy_ctors(x):
    y = (x + 1).requires_grad_()
    return (
        Variable(y) * 2,
        Variable(y, requires_grad=True).is_leaf,
        Variable(data=y * 2).requires_grad,
        torch.Tensor([1, 2]) + 1,
        torch.LongTensor([[1], [2]]),
        torch.FloatTensor(x.size()).fill_(2.0),
        torch.ByteTensor((0, 1)),
        torch.IntTensor(2, x.shape[0]).zero_(),
        torch.DoubleTensor(),
        x.new(x.size()).zero_(),
        x.new(2, 3).fill_(1.0),
        y.long().new([1, 2]),
        x.data.new().shape,
    )


@PROGRAMS.add(matrix)
def instances(x):
    y = x + 1
    kinds = (Variable, torch.FloatTensor, torch.LongTensor, torch.nn.Parameter, torch.nn.Buffer, torch.Tensor, tuple)
    return [isinstance(t, kind) for t in (x, y, y.long()) for kind in kinds], isinstance(y, kinds[2:5])


@PROGRAMS.add(matrix)
def tensor_ctor(x):
    return (
        torch.tensor([1, 2, 3]),
        torch.tensor(2.5) * x,
        torch.full((2,), 3),
        torch.ones_like(x),
        torch.eye(2),
        torch.linspace(0, 1, 3),
        torch.empty(0),
    )


@PROGRAMS.add(matrix)
def torchops(x):
    return (
        F.relu(x),
        torch.cat([x, x], 0),
        torch.einsum("ij,kj->ik", x, x),
        x.mean(-1, keepdim=True),
        F.softmax(x, -1),
        x.masked_fill(x > 0, 0.0),
        torch.where(x > 0, x, -x),
        x.transpose(0, 1).contiguous(),
        torch.stack([x, x]),
        F.pad(x, (1, 1)),
        x.std(),
        F.layer_norm(x, (4,)),
        x.permute(1, 0),
        x[x.argmax(0)],
        x.gather(1, torch.zeros(3, 1, dtype=torch.long)),
        F.one_hot(torch.tensor([0, 1]), 3),
        torch.bmm(x[None], x.t()[None]),
        x.flatten(),
        x.cumsum(0),
        F.gelu(x),
        torch.tril(torch.ones(3, 3)),
        x.var(unbiased=False),
        F.cross_entropy(x, torch.tensor([0, 1, 2])),
        x.abs().clamp(min=0.1).log(),
        torch.outer(x[0], x[1]),
        x.unsqueeze(0).squeeze(0),
        x.repeat(2, 1),
        x.roll(1),
        torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij"),
        F.interpolate(x[None, None], scale_factor=2),
        F.max_pool2d(x[None], 2),
        F.scaled_dot_product_attention(x[None], x[None], x[None]),
        torch.linalg.norm(x),
        torch.special.expit(x),
        torch.nn.functional.normalize(x),
    )


@PROGRAMS.add(matrix)
def rng(x):
    return (
        torch.rand(2),
        F.dropout(x, 0.5),
        torch.randn_like(x),
        torch.randint(0, 5, (2,)),
        torch.bernoulli(torch.full((3,), 0.5)),
    )


@PROGRAMS.add(matrix)
def dtypes(x):
    return (
        x.to(dtype=torch.float16),
        x.half().dtype is torch.half,
        torch.finfo(x.dtype).min,
        torch.iinfo(torch.int32).max,
        torch.get_default_dtype(),
        x.element_size(),
        torch.promote_types(torch.int32, torch.float32),
        x.new_tensor([1.0, 2.0]),
        torch.zeros_like(x, dtype=torch.int),
    )


@PROGRAMS.add(matrix)
def inplace(x):
    x.add_(1)
    x[0] = 5
    x[:, 1] *= 2
    y = x
    y += 1
    return y


@PROGRAMS.add(matrix)
def mutates_through_views(x):
    y = x[0]
    y.add_(1)
    z = x.view(-1)
    z[0] = 100
    x.mul_(2)
    return y


@PROGRAMS.add(matrix)
def aliasing_outputs(x):
    y = x * 2
    return y, y[0], y.view(-1), x[1:], x


@PROGRAMS.add(lambda: (lambda a: (a, a))(tensor(3)))
def one_tensor_twice(p):
    a, b = p
    a.add_(1)
    return b * 2, a is b


@PROGRAMS.add(lambda: tensor(3).requires_grad_(), lambda: tensor(3))
def grad_flags(x, y):
    z = (x * y).sum()
    w = z.detach()
    return z, w, x.requires_grad, z.requires_grad, x.is_leaf, (x * 1).is_leaf


@PROGRAMS.add(matrix)
def returns_inputs(x):
    return x, [x], x + 1


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


@PROGRAMS.add(lambda: torch.ones(2, 3))
def numbers_of_tensors_that_the_program_makes(x):
    rates = [rate.item() for rate in torch.linspace(0, 0.1, 3)]
    count = int(torch.tensor([1, 2]).sum()) + torch.tensor(3).item() + int(torch.zeros(2, dtype=torch.long).max())
    dims = torch.arange(len(x.shape)).tolist()
    if torch.ones(3).prod() > 0.5:
        count += 1
    written = torch.zeros(3)
    written[1] = 2
    return x * rates[1] + count, rates, x.sum(dims), float(torch.ones(1)), written.float()


def seeded():
    torch.manual_seed(0)
    return torch.ones(2, 3)


@PROGRAMS.add(seeded)
def random_numbers_beside_what_lies_outside_of_their_bounds(x):
    for rate in (0.0, -1):
        if torch.rand([]) < rate or torch.rand(1)[0].le(-0.1) or rate > torch.rand_like(x)[0, 1]:
            continue
        x = x + 1 if torch.rand(()) < 1.5 else x - 1
        x = x * 2 if torch.ge(torch.rand(1, dtype=torch.float64), 0) else x
    return x, torch.rand(2), torch.rand([]) < float("nan")


@PROGRAMS.add(seeded, refusal="BC004")
def random_numbers_beside_what_lies_within_their_bounds(x):
    return x + 1 if torch.rand([]) < 0.5 else x - 1


@PROGRAMS.add(lambda: torch.ones(2, 3), refusal="BC004")
def random_numbers_that_were_written(x):
    drawn = torch.rand([])
    drawn.sub_(2)
    return x + 1 if drawn < 0 else x - 1


@PROGRAMS.add(lambda: torch.ones(2, 3))
def tensors_of_numbers_alone(x):
    half = torch.div(x.shape[1], 2, rounding_mode="trunc") + 1
    return x.new_zeros(2, half), x.reshape(3, half), x * half, torch.add(2, 3, alpha=2), torch.mul(2.5, 2), half.item()


@PROGRAMS.add(lambda: torch.ones(2, 3), refusal="BC004")
def numbers_of_a_tensor_that_was_written(x):
    made = torch.zeros(3)
    made[0] = x.sum()
    return x * made.sum().item()


@PROGRAMS.add(lambda: torch.ones(2, 3), lambda: torch.tensor(2), refusal="BC004")
def sizes_that_a_tensor_gives(x, count):
    return x * 2, torch.zeros(torch.Size([count, 3]))
