"""Small programs over which a stage is tried: operators on hostile values, effects, random numbers, blocks of models.

A row is a function and its inputs by letters: f hostile floats, m a matrix of plain ones, i integers, e no elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from stagewire.stage import registered

__all__ = ["HOSTILE", "Trial", "trials"]

HOSTILE = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.001, -0.001, 3.7, -3.7, 1.3, -1.3, 10.0, -10.0,
    25.0, -25.0, 88.5, -88.5, 1e30, -1e30, 1e-40, -1e-40, math.inf, -math.inf, math.nan,
)  # fmt: skip
"""Both zeros, halves (rounding), small, large and denormal numbers of both signs, infinities, nan."""

INTEGERS = (0, 1, -1, 2, -2, 3, 7, -7, 8, -8, 100, -100, 2**31 - 1, -(2**31))

Program = Callable[..., Any]


class Trial(NamedTuple):
    """A program and its inputs. ulps: how many units in the last place of its exact result (of the largest, where it is
    not `elementwise`) it may be off beside what eager is. signed: whether the sign of a zero is the program's."""

    name: str
    program: Program
    inputs: tuple[torch.Tensor, ...]
    ulps: float
    elementwise: bool
    signed: bool = False


SIGNED = "neg ceil floor round trunc sgn positive sin tan asin atan sinh tanh sqrt erf mul div copysign".split()  # noqa: SIM905
"""Operators of which IEEE 754 says which zero they give, or that are odd."""
EXACT = (
    "abs ceil floor frac neg relu round sign sgn trunc positive isnan isinf isfinite signbit logical_not square "
    "nan_to_num"
)
ROUNDED = (
    "acos acosh asin asinh atan atanh cos cosh digamma erf erfc erfinv exp exp2 expm1 lgamma log log10 log1p log2 "
    "reciprocal rsqrt sigmoid sin sinc sinh sqrt tan tanh deg2rad rad2deg"
)
ACTIVATIONS = (
    "relu6 gelu silu mish softplus softsign elu selu celu leaky_relu hardtanh hardswish hardsigmoid logsigmoid "
    "tanhshrink hardshrink softshrink"
)
PAIRS = (
    "add sub mul div maximum minimum fmax fmin fmod remainder copysign eq ne lt le gt ge logical_and logical_or "
    "logical_xor heaviside nextafter"
)
ROUNDED_PAIRS = "atan2 pow hypot xlogy logaddexp logaddexp2 float_power"
INTEGER_PAIRS = "add sub mul maximum minimum bitwise_and bitwise_or bitwise_xor eq lt ge"
REDUCTIONS: dict[str, Program] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(0),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(0),
    "prod": lambda x: x.prod(-1),
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(0),
    "any": lambda x: x.any(-1),
    "all": lambda x: (x > 0).all(0),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(0),
    "logsumexp": lambda x: x.logsumexp(-1),
    "softmax": lambda x: x.softmax(-1),
    "norm": lambda x: x.norm(dim=-1),
    "log_softmax": lambda x: x.log_softmax(0),
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(0),
    "max": lambda x: tuple(x.max(-1)),
    "var_mean": lambda x: torch.var_mean(x, 0),
    "count": lambda x: (x > 0).sum(),
    "softmax of sums": lambda x: (x.sum(-1, keepdim=True) * x).softmax(-1),
    "topk": lambda x: tuple(x.topk(2)),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms": lambda x: x * (x * x).mean(-1, True).add(1e-5).rsqrt(),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(x.shape[0]) % x.shape[1]),
    "mse": lambda x: F.mse_loss(x, x.flip(0)),
}
LAYOUTS: dict[str, Program] = {
    "transposed": lambda x: x.t() * 2 + x.t(),
    "cat": lambda x: torch.cat([x, x.flip(0)], 1) + 1,
    "stack": lambda x: torch.stack([x, -x], 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=3.0) * x.exp().sum(),
    "roll": lambda x: x.roll(1, 0) - x,
    "index": lambda x: x[torch.tensor([2, 0, 1, 2])] * 2,
    "slice": lambda x: x[1:, ::2] + 1,
    "gather": lambda x: x.gather(1, torch.zeros(3, 2, dtype=torch.int64)) + 1,
    "tril": lambda x: x.tril() + x.triu(1) * 2,
    "scatter": lambda x: x.new_zeros(3, 9).scatter(1, torch.arange(7).repeat(3, 1), x),
    "index_add": lambda x: x.new_zeros(2, 7).index_add(0, torch.tensor([0, 1, 0]), x),
    "where": lambda x: torch.where(x > 0, x, -2 * x),
    "expand": lambda x: x[:, None].expand(3, 4, 7).sum(1) * x,
    "unfold": lambda x: x.unfold(1, 3, 2).sum(-1),
    "as_strided": lambda x: x.as_strided((3, 3), (7, 2)) * 2,
    "split": lambda x: [part * 2 for part in x.split(3, 1)],
    "diagonal": lambda x: x.diagonal() + x[:, 0],
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 9.0).cumsum(1),
    "product": lambda x: x @ x.t(),
    "product and bias": lambda x: F.gelu(torch.addmm(x[:, 0], x, x.t())),
    "one_hot": lambda x: F.one_hot(x.argmax(0), 3) * x.t(),
}


def _reads_before_it_writes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = x.sum(0)
    x.mul_(2)
    return total + x, x.sum(0)


def _writes_between_reductions(x: torch.Tensor) -> torch.Tensor:
    first = x.amax(-1, keepdim=True)
    x.sub_(first)
    x[0].add_(1)
    return x.exp().sum(-1) + first[:, 0]


def _writes_a_view(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 1
    row = y[1]
    row.add_(y.sum())
    return y * 2, row


def _drops(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.exp(F.dropout(x, 0.5) * x), 0.3) * x


def _draws(x: torch.Tensor) -> torch.Tensor:
    return torch.bernoulli(x.sigmoid()) * x + torch.rand_like(x) * 2 + torch.randn(x.shape[1]).sin()


def _dense(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(x @ w), (5,)) @ v


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT / 8**0.5).masked_fill(torch.ones(6, 6).triu(1).bool(), -math.inf).softmax(-1) @ v


def _convolution(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = F.batch_norm(F.conv2d(x, w, padding=1), None, None, training=True)
    return F.max_pool2d(y.relu() + F.avg_pool2d(y, 3, 1, 1), 2)


def _cell(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        i, f, g, o = (torch.cat([x, h], 1) @ w).chunk(4, 1)
        h = torch.sigmoid(o) * torch.tanh(torch.sigmoid(f) * h + torch.sigmoid(i) * torch.tanh(g))
    return h


EFFECTS: dict[str, tuple[Program, tuple[tuple[int, ...], ...], bool]] = {
    "reads before it writes": (_reads_before_it_writes, ((3, 7),), False),
    "writes between reductions": (_writes_between_reductions, ((3, 7),), False),
    "writes a view": (_writes_a_view, ((3, 7),), True),
    "drops": (_drops, ((6, 40),), True),
    "draws": (_draws, ((6, 40),), True),
    "dense": (_dense, ((4, 8), (8, 5), (5, 3)), True),
    "attention": (_attention, ((2, 6, 8),) * 3, True),
    "convolution": (_convolution, ((2, 3, 6, 6), (4, 3, 3, 3)), True),
    "recurrent cell": (_cell, ((2, 3), (2, 4), (7, 16)), True),
    "embedding": (lambda w: F.embedding(torch.tensor([[1, 0], [2, 1]]), w).sum(1).tanh(), ((3, 5),), True),
}
"""By name: the program, the shapes of its inputs, and whether these have gradients."""


def trials(dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)) -> Iterator[Trial]:
    """All of them; the operators in each of `dtypes`."""
    for dtype in dtypes:
        values = torch.tensor(HOSTILE, dtype=dtype)
        rows, columns = values.repeat_interleave(len(HOSTILE)), values.repeat(len(HOSTILE))
        label = str(dtype).removeprefix("torch.")
        for names, ulps in ((EXACT, 0.0), (ROUNDED, 8.0), (ACTIVATIONS, 16.0)):
            for name in names.split():
                op, given = getattr(F if names is ACTIVATIONS else torch, name), (values.clone().requires_grad_(),)
                yield Trial(f"{name} {label}", _after(op), given, ulps, True, name in SIGNED)
        for name, program in registered("stagefold.trials").items():  # of other distributions, element by element
            yield Trial(f"{name} {label}", program, (values.clone().requires_grad_(),), 16.0, True)
        for names, ulps in ((PAIRS, 0.0), (ROUNDED_PAIRS, 8.0)):
            for name in names.split():
                op, given = getattr(torch, name), (rows, columns)
                yield Trial(f"{name} {label}", _after(op), given, ulps, True, name in SIGNED)
        plain = torch.linspace(-2, 2, 21, dtype=dtype).sin().reshape(3, 7)
        for name, program in (REDUCTIONS | LAYOUTS).items():
            yield Trial(f"{name} {label}", program, (plain.clone().requires_grad_(),), 16.0, False)
        for name in ("amax", "amin", "sum", "max", "any", "cumsum", "argmax"):
            hostile = values.repeat(2)[: len(HOSTILE) // 7 * 7].reshape(-1, 7)
            yield Trial(f"{name} of hostile {label}", REDUCTIONS[name], (hostile,), 16.0, False)
    integers = torch.tensor(INTEGERS, dtype=torch.int32)
    rows, columns = integers.repeat_interleave(len(INTEGERS)), integers.repeat(len(INTEGERS))
    for name in INTEGER_PAIRS.split():
        yield Trial(f"{name} int32", _after(getattr(torch, name)), (rows, columns), 0.0, True)
    for name in ("floor_divide", "remainder", "bitwise_left_shift"):
        yield Trial(f"{name} int32", _after(getattr(torch, name)), (rows, columns.abs().clamp(1, 30)), 0.0, True)
    for name in ("exp", "relu"):
        yield Trial(f"{name} empty", _after(getattr(torch, name)), (torch.empty(0, 3, requires_grad=True),), 0.0, True)
    for name in ("sum", "prod", "cumsum", "any"):
        yield Trial(f"{name} empty", REDUCTIONS[name], (torch.empty(3, 0),), 0.0, False)
    for name, (program, shapes, trained) in EFFECTS.items():
        torch.manual_seed(len(name))
        yield Trial(name, program, tuple(torch.randn(shape, requires_grad=trained) for shape in shapes), 32.0, False)


def _after(op: Program) -> Program:
    """The operator in a program of its own."""
    return lambda *inputs: op(*inputs)
