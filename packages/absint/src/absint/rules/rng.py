"""Rules of random sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.kernels import Question, ones
from absint.meta import Meta, contiguous
from absint.rules.constraint import Constraint, Refused, f32
from absint.rules.factory import device_of
from absint.rules.movement import like
from absint.rules.pointwise import broadcast, pointwise
from absint.rules.table import RuleTable

__all__ = ["TABLE"]

TABLE = RuleTable()


@TABLE.rule("bernoulli bernoulli.p bernoulli.Tensor")
def _bernoulli(self: Meta, p: Any = 0.5, *, generator: Any = None) -> Meta:
    return contiguous(self.shape, self.dtype, self.device)


@TABLE.rule("""uniform normal_functional exponential log_normal cauchy geometric random random.from random.to""")
def _filled(self: Meta, *_: Any, **__: Any) -> Meta:
    return like(self, None)


@TABLE.rule("randint randint.generator")
def _randint(
    high: int,
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_: Any,
) -> Meta:
    return contiguous(size, dtype or torch.int64, device_of(device))


@TABLE.rule("randint.low randint.low_generator")
def _randint_low(low: int, high: int, size: Sequence[int], **options: Any) -> Meta:
    return _randint(high, size, **options)


@TABLE.rule("randperm randperm.generator")
def _randperm(n: int, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Meta:
    return contiguous((n,), dtype or torch.int64, device_of(device))


@TABLE.rule("normal.float_float")
def _normal(
    mean: float,
    std: float,
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_: Any,
) -> Meta:
    return contiguous(size, dtype or torch.get_default_dtype(), device_of(device))


def _can_draw(self: Meta, num_samples: int, replacement: bool = False, *, generator: Any = None) -> bool:
    return num_samples > 0 and (replacement or all(num_samples <= size for size in self.shape[-1:]))


_DRAWN = Constraint(
    "C1", "some are drawn, and no more than there are without replacement", _can_draw,
    Refused("multinomial", (f32(3), 4)),
)  # fmt: skip


@TABLE.rule("multinomial", requires=(_DRAWN,))
def _multinomial(self: Meta, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Meta:
    return contiguous((*self.shape[:-1], num_samples), torch.int64, self.device)


@TABLE.rule("native_dropout")
def _native_dropout(input: Meta, p: float, train: bool | None) -> tuple[Meta, Meta]:
    mask = contiguous(input.shape, torch.bool, input.device)
    return pointwise((input, mask), input.dtype), mask


@TABLE.rule("normal.Tensor_float")
def _normal_mean(mean: Meta, std: float = 1.0, *, generator: Any = None) -> Meta:
    return like(mean, None)


@TABLE.rule("normal.float_Tensor")
def _normal_std(mean: float, std: Meta, *, generator: Any = None) -> Meta:
    return like(std, None)


@TABLE.rule("normal.Tensor_Tensor")
def _normal_both(mean: Meta, std: Meta, *, generator: Any = None) -> Meta:
    return contiguous(broadcast(mean.shape, std.shape), mean.dtype, mean.device)


@TABLE.rule("rrelu_with_noise_functional")
def _rrelu(self: Meta, noise: Meta, *_: Any, **__: Any) -> tuple[Meta, Meta]:
    return contiguous(self.shape, self.dtype, self.device), noise


@TABLE.rule("rrelu_with_noise")
def _rrelu_with_noise(self: Meta, noise: Meta, *_: Any, **__: Any) -> Meta:
    return contiguous(self.shape, self.dtype, self.device)


@TABLE.rule("rrelu_with_noise_backward")
def _rrelu_backward(
    grad_output: Meta,
    self: Meta,
    noise: Meta,
    lower: Any,
    upper: Any,
    training: bool,
    self_is_result: bool,
) -> Meta:
    if training and upper - lower > 1e-6:
        return pointwise((grad_output, noise))
    return pointwise((self, grad_output))


TABLE.ask(
    """bernoulli bernoulli.Tensor uniform normal_functional exponential log_normal cauchy geometric random
    normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor"""
)
TABLE.ask("multinomial", question=Question(
    of=lambda self, num_samples, *rest, **_: (ones(self), 1, *rest), drops_sizes=True
))  # fmt: skip
