"""Elementwise operators on an NVIDIA GPU, on ordinary, large, small and special values, beside eager (`nox -s gpu`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stagefold
from integration_tests.zoo.devices import ON_GPU

pytestmark = ON_GPU


def named(module: Any, names: str) -> dict[str, Callable[..., torch.Tensor]]:
    return {name: getattr(module, name) for name in names.split()}


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **named(torch, "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh"),
    **named(torch, "erf erfc erfinv lgamma digamma sqrt rsqrt reciprocal sigmoid abs neg sign ceil floor round trunc"),
    **named(torch, "frac square isnan isinf isfinite signbit sinc i0 nan_to_num rad2deg positive sgn"),
    **named(F, "relu gelu silu mish softplus elu selu hardswish hardsigmoid"),
    "softsign": F.softsign,
    "cube": lambda x: x**3,
    "to an integer": lambda x: x.nan_to_num(0, 100, -100).clamp(-100, 100).to(torch.int32),
    "modulo a number": lambda x: x % 0.1,
    "floor of a number": lambda x: x // 0.1,
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    **named(torch, "add sub mul div fmod remainder floor_divide atan2 hypot pow copysign nextafter maximum minimum"),
    **named(torch, "fmax fmin logaddexp logaddexp2 xlogy heaviside eq ne lt le gt ge"),
    "quotient, floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -3.0, 1e-6, 60.0, -60.0, 1e4, -1e4, math.inf, -math.inf, math.nan]
SINGLE = [1e30, -1e30, 3e38, 2e-38, 16777217.0, 88.0, 89.0, -88.0, 0.1, 6.0]
"""(Triton takes float32 numbers below 1.2e-38 for 0, as torch.compile's kernels do.)"""
TOLERANCE = {torch.float32: 4e-6, torch.float64: 1e-13, torch.bfloat16: 8e-3}


def values(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    special = torch.tensor(SPECIAL + (SINGLE if dtype != torch.bfloat16 else []), dtype=torch.float64)
    return torch.cat([special, torch.randn(2000, dtype=torch.float64) * 5]).to(dtype).cuda()


def check(program: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    tolerance = TOLERANCE[inputs[0].dtype]
    found, expected = stagefold.compile(program, fullgraph=True)(*inputs), program(*inputs)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance / 10, equal_nan=True)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_of_one(name: str, dtype: torch.dtype) -> None:
    if name in ("hardswish", "hardsigmoid") and dtype == torch.float64:
        pytest.skip("eager divides by a float32 constant there")
    check(UNARY[name], values(dtype))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_of_two(name: str, dtype: torch.dtype) -> None:
    if name == "nextafter" and dtype == torch.bfloat16:
        pytest.skip("ATen has none on a GPU")
    x = values(dtype)
    pairs = torch.cartesian_prod(x[:40], x[:40])
    check(BINARY[name], torch.cat([pairs[:, 0], x]), torch.cat([pairs[:, 1], x.flip(0)]))
