"""Rules of random sampling from tensors; those that make tensors from sizes are with the factories."""

from __future__ import annotations

import torch

from absint.kernels import Question, ones
from absint.meta import Meta
from absint.rules.constraint import Constraint, Refused, f32
from absint.rules.pointwise import broadcast, pointwise
from absint.rules.results import empty_like, fresh
from absint.rules.table import Rule, RuleTable

__all__ = ["TABLE"]

TABLE = RuleTable()

_DRAWN = Constraint(
    "C1", "some are drawn, and no more than there are without replacement", lambda self, num_samples, replacement: (
        num_samples > 0 and (replacement or all(num_samples <= size for size in self.shape[-1:]))
    ),
    Refused("multinomial", (f32(3), 4)),
)  # fmt: skip


def _native_dropout(input: Meta) -> tuple[Meta, Meta]:
    mask = fresh(input, dtype=torch.bool)
    return pointwise((input, mask), input.dtype), mask


def _rrelu_backward(grad_output: Meta, self: Meta, noise: Meta, lower: float, upper: float, training: bool) -> Meta:
    return pointwise((grad_output, noise) if training and upper - lower > 1e-6 else (self, grad_output))


_FILLS = "uniform normal_functional exponential log_normal cauchy geometric random"
TABLE.rows({
    "bernoulli bernoulli.p bernoulli.Tensor rrelu_with_noise": lambda self: fresh(self),
    f"{_FILLS} random.from random.to": lambda self: empty_like(self),
    "multinomial": Rule(lambda self, num_samples: fresh(self, (*self.shape[:-1], num_samples), torch.int64), (_DRAWN,)),
    "native_dropout": _native_dropout,
    "normal.Tensor_float": lambda mean: empty_like(mean),
    "normal.float_Tensor": lambda std: empty_like(std),
    "normal.Tensor_Tensor": lambda mean, std: fresh(mean, broadcast(mean.shape, std.shape)),
    "rrelu_with_noise_functional": lambda self, noise: (fresh(self), noise),
    "rrelu_with_noise_backward": _rrelu_backward,
})  # fmt: skip
TABLE.ask(f"bernoulli bernoulli.Tensor {_FILLS} normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor")
TABLE.ask("multinomial", Question(of=lambda self: {"self": ones(self), "num_samples": 1}, drops_sizes=True))
