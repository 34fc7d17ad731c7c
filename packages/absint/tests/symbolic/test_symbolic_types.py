"""Torch code on tensors with symbolic sizes: its types, read at accepted sizes, are those of a run with these sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from absint import AbstractMode, AbstractTensor, Meta, contiguous
from absint.forms.products import takes_symbols
from absint.meta import to_wire
from absint.strides import contiguous_stride
from absint.symbolic import ShapeEnv, dim_of, make_size, unwrap
from stagewire.expr import evaluate

SIZES = ({"b": 4, "s": 6}, {"b": 3, "s": 9}, {"b": 7, "s": 2}, {"b": 2, "s": 32})
Program = Callable[[torch.Tensor], torch.Tensor]
HOLDS = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge}


def attention(x: torch.Tensor) -> torch.Tensor:
    b, s, _ = x.shape
    q, k, v = (part.view(b, s, 2, 4).transpose(1, 2) for part in (x, x * 2, x + 1))
    positions = torch.arange(s)
    scores = (q @ k.transpose(-1, -2)).masked_fill(positions[None] > positions[:, None], float("-inf"))
    own = (scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(b, s, 8)
    return own + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, -1, 8)


PROGRAMS: dict[str, Program] = {
    "elementwise": lambda x: (x * 2 + x.sin()).relu(),
    "broadcast": lambda x: x + x[:, :1] * torch.ones(8),
    "mean": lambda x: x.mean(1) + x.sum((0, 1)),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "linear": lambda x: F.linear(x, torch.ones(5, 8)).flatten(1),
    "attention": attention,
    "cat": lambda x: torch.cat([x[:, 1:], x[:, :1], x], 1),
    "split": lambda x: sum(part.sum(0) for part in x.split(4, -1)),
    "stack": lambda x: torch.stack([x, x], 1).unbind(1)[0],
    "embedding": lambda x: F.embedding(torch.zeros(x.shape[0], x.shape[1], dtype=torch.long), torch.ones(5, 3)),
    "expand": lambda x: x[:, None].expand(-1, 3, -1, -1).reshape(x.shape[0] * 3, -1),
    "conv1d": lambda x: F.conv1d(x.transpose(1, 2), torch.ones(4, 8, 3), padding=1),
    "conv2d": lambda x: F.conv2d(x[:, None], torch.ones(4, 1, 3, 3), padding=1, stride=2),
    "pool": lambda x: F.adaptive_avg_pool1d(x.transpose(1, 2), 1),
    "max_pool": lambda x: F.max_pool1d(x, 2),
    "interpolate": lambda x: F.interpolate(x.transpose(1, 2), size=20),
    "dropout": lambda x: F.dropout(x, 0.5),
    "gather": lambda x: x.gather(1, torch.zeros_like(x, dtype=torch.long)),
    "cumsum": lambda x: x.cumsum(1).flip(1),
    "tril": lambda x: torch.ones(x.shape[1], x.shape[1]).tril() @ x,
    "half": lambda x: x[:, : x.shape[1] // 2] * x.shape[0],
    "masks": lambda x: torch.where(x > 0, x, torch.full_like(x, x.shape[1])),
    "in_place": lambda x: x.clone().add_(1).mul_(x),
    "gamma": lambda x: torch._standard_gamma(x.exp()),
    "dirichlet": lambda x: torch._sample_dirichlet(x.detach().exp()),
    "dirichlet_backward": lambda x: torch._dirichlet_grad(x.detach(), x.detach(), x.detach().sum(-1, True)) + x,
    "counts": lambda x: torch.poisson(x.exp()) + torch.binomial(x.detach().exp(), x.detach().sigmoid()),
}

# Programs that ask for more than sizes: a half of one element broadcasts, and C++ of upsampling fixes the sizes.
FEWER = {"half": 3, "interpolate": 1}

NEWER = frozenset({"linear", "attention", "tril"})


def run(
    program: Callable[[torch.Tensor], torch.Tensor], sizes: tuple[object, object], env: ShapeEnv | None
) -> list[Meta]:
    shape = (*sizes, 8)
    x = AbstractTensor(Meta(shape, contiguous_stride(shape), torch.float32), requires_grad=True)
    with AbstractMode() as mode:
        y = program(x)
        (gradient,) = (
            torch.autograd.Variable._execution_engine.run_backward(
                (y.sum(),), (AbstractTensor(contiguous((), torch.float32)),), False, False, (x,),
                allow_unreachable=True, accumulate_grad=False,
            )
            if y.requires_grad
            else (None,)
        )  # fmt: skip
    assert not mode.fallback.counts or env is None
    return [tensor.meta for tensor in (y, gradient) if tensor is not None]


@pytest.mark.parametrize("name", PROGRAMS)
def test_types_at_all_accepted_sizes(name: str) -> None:
    if name in NEWER and not takes_symbols():
        pytest.skip("the C++ of this torch multiplies no tensors of symbolic sizes")
    env = ShapeEnv()
    sizes = tuple(make_size(env, env.create(symbol, hint)) for symbol, hint in SIZES[0].items())
    symbolic = [to_wire(meta) for meta in run(PROGRAMS[name], sizes, env)]
    accepted = 0
    for values in SIZES:
        if not all(HOLDS[r.operator](evaluate(r.left, values), evaluate(r.right, values)) for r in env.relations):
            continue
        accepted += 1
        static = run(PROGRAMS[name], tuple(values.values()), None)
        for found, expected in zip(symbolic, static, strict=True):
            assert tuple(evaluate(dim, values) for dim in found.shape) == expected.shape
            assert tuple(evaluate(dim, values) for dim in found.stride) == expected.stride
            assert found.dtype == str(expected.dtype).removeprefix("torch.")
    assert accepted >= FEWER.get(name, len(SIZES)), [f"{r.left} {r.operator} {r.right}" for r in env.relations]


def test_a_number_that_is_asked_for_is_fixed() -> None:
    env = ShapeEnv()
    n = make_size(env, env.create("n", 6))
    assert list(range(n)) == [0, 1, 2, 3, 4, 5]
    assert n == 6
    assert dim_of(n * 2) == 12
    assert [f"{r.left} {r.operator} {r.right}" for r in env.relations] == ["n == 6"]


def test_tensors_of_one_type_are_of_their_own() -> None:
    """Wrappers are copied from one another: neither memory, history nor a change of the type in place goes along."""
    env = ShapeEnv()
    n, m = (make_size(env, env.create(symbol, hint)) for symbol, hint in (("n", 4), ("m", 6)))
    meta = contiguous((n, 3, m), torch.float32)
    with AbstractMode():
        first = AbstractTensor(meta, requires_grad=True)
        second = AbstractTensor(meta)
        assert torch.Tensor.is_contiguous(second)
        assert (first.requires_grad, second.requires_grad) == (True, False)
        assert not first.is_alias_of(second)
        second.add_(1)
        assert (first._version, second._version) == (0, 1)
        with torch.no_grad():
            first.transpose_(0, 2)
        third = AbstractTensor(meta)
        for tensor, shape in ((first, ("m", "3", "n")), (second, ("n", "3", "m")), (third, ("n", "3", "m"))):
            assert tuple(str(size) for size in torch.Tensor.size(tensor)) == shape
        assert not torch.Tensor.is_contiguous(first)
        with torch.inference_mode():
            assert torch.Tensor.is_inference(AbstractTensor(meta))
        assert not torch.Tensor.is_inference(AbstractTensor(meta))
        assert (third * first.transpose(0, 2)).requires_grad


def test_a_row_major_type_asks_nothing() -> None:
    env = ShapeEnv()
    n, m = (make_size(env, env.create(symbol, hint)) for symbol, hint in (("n", 4), ("m", 6)))
    with AbstractMode():
        for shape in ((n, 3, m), (n, 1, m * m), (n, m + 2), (0, n)):
            tensor = AbstractTensor(contiguous(shape, torch.float32))
            assert torch.Tensor.is_contiguous(tensor)
            assert tuple(map(unwrap, torch.Tensor.stride(tensor))) == contiguous_stride(shape)
    assert env.relations == []


NORMS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "layer_norm": lambda x, n: F.layer_norm(x, (n,)),
    "weighted layer_norm": lambda x, n: F.layer_norm(x, (n,), torch.ones(n), torch.zeros(n)),
    "group_norm": lambda x, n: F.group_norm(x, 2, torch.ones(n)),
    "batch_norm": lambda x, n: F.batch_norm(x, torch.zeros(n), torch.ones(n)),
    "batch_norm in training": lambda x, n: F.batch_norm(x, None, None, torch.ones(n), training=True),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_size_that_parameters_have_is_a_number(name: str) -> None:
    env = ShapeEnv()
    b, n = (make_size(env, env.create(symbol, hint)) for symbol, hint in (("b", 4), ("n", 6)))
    x = AbstractTensor(contiguous((b, n), torch.float32))
    with AbstractMode():
        found = NORMS[name](x, 6)
        assert {"n == 6", "6 == n"} & {f"{r.left} {r.operator} {r.right}" for r in env.relations}
        assert tuple(map(str, map(dim_of, found.meta.shape))) == ("b", "6")
        with pytest.raises(RuntimeError):
            NORMS[name](x, 8)
