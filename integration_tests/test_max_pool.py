"""Max pooling is computed in loops: values, positions and gradients are eager's, whatever the layout and the dtype."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import stagefold

CASES = [
    ((2, 3, 8, 8), dict(kernel_size=2)),
    ((2, 3, 9, 7), dict(kernel_size=3, stride=2, padding=1)),
    ((2, 3, 9, 10), dict(kernel_size=(3, 2), stride=(2, 3), padding=1, ceil_mode=True)),
    ((2, 3, 9, 9), dict(kernel_size=3, stride=1, dilation=2)),
    ((2, 3, 9, 9), dict(kernel_size=3, stride=2, padding=1, dilation=2)),
    ((1, 1, 17, 17), dict(kernel_size=6, stride=1, padding=3)),
    ((0, 3, 8, 8), dict(kernel_size=2)),
    ((3, 1, 1), dict(kernel_size=1)),
]


def hard(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Many equals, infinities, nan and both zeros."""
    x = torch.randint(-2, 3, shape).to(dtype)
    if dtype.is_floating_point:
        x[torch.rand(shape) < 0.3] = float("-inf")
        x[torch.rand(shape) < 0.1] = float("nan")
        x[torch.rand(shape) < 0.1] = -0.0
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32])
@pytest.mark.parametrize(("shape", "options"), CASES)
def test_values_and_positions(shape: tuple[int, ...], options: dict, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = hard(shape, dtype)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.max_pool2d(x, **options, return_indices=True)

    compiled = stagefold.compile(program, fullgraph=True)
    inputs = [x]
    if x.dim() == 4:
        inputs += [x.to(memory_format=torch.channels_last), x.transpose(2, 3)[:, :, :, : x.shape[3]]]
    for one in inputs:
        for have, want in zip(compiled(one), program(one), strict=True):
            assert have.stride() == want.stride()
            torch.testing.assert_close(have, want, rtol=0, atol=0, equal_nan=True)
            if have.dtype.is_floating_point:
                assert torch.equal(have.signbit() | have.isnan(), want.signbit() | want.isnan())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("shape", "options"), [case for case in CASES if len(case[0]) == 4 and 0 not in case[0]])
def test_gradients_through_neighbours(shape: tuple[int, ...], options: dict, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    data = torch.randn(shape).to(memory_format=layout)

    def program(x: torch.Tensor) -> torch.Tensor:
        return (F.max_pool2d(x.relu() * 2, **options) + 1).square().sum()

    gradients = []
    for call in (program, stagefold.compile(program, fullgraph=True)):
        x = data.clone().requires_grad_()
        call(x).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("pool", [F.max_pool1d, F.max_pool3d])
def test_other_ranks(pool) -> None:
    x = hard((2, 3, 9) if pool is F.max_pool1d else (2, 3, 5, 6, 7), torch.float32)

    def program(x: torch.Tensor) -> torch.Tensor:
        return pool(x, 2, stride=2, padding=1)

    torch.testing.assert_close(stagefold.compile(program)(x), program(x), rtol=0, atol=0, equal_nan=True)
