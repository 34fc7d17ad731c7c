"""Half precision: deep networks and long sums stay as near to exact results as eager's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import stagefold


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.convolution(x)) + x)


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_residual_blocks_with_batch_norms_do_not_drift(dtype):
    torch.manual_seed(0)
    blocks = [Block(16) for _ in range(24)]
    for block in blocks:
        nn.init.normal_(block.convolution.weight, std=0.2)
    model = nn.Sequential(*blocks).eval().to(dtype)
    x = torch.rand(2, 16, 8, 8).to(dtype)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        plain, compiled = model(x), stagefold.compile(model)(x)
    assert _error(compiled, exact) < 1.25 * _error(plain, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("way", ["index_put", "index_add", "scatter_add", "gradient"])
def test_long_sums_at_indices_are_found_in_float32(dtype, way):
    """4,096 ones into one place: added one by one in half precision they stay at 256 or 2,048."""
    index = torch.zeros(4096, dtype=torch.int64)
    ones = torch.ones(4096, dtype=dtype)

    def program(table: torch.Tensor) -> torch.Tensor:
        match way:
            case "index_put":
                return table.index_put((index,), ones, accumulate=True)
            case "index_add":
                return table.index_add(0, index, ones)
            case "scatter_add":
                return table.scatter_add(0, index, ones)
        (gradient,) = torch.autograd.grad(table[index].sum(), table)
        return gradient

    table = torch.zeros(3, dtype=dtype, requires_grad=way == "gradient")
    assert stagefold.compile(program)(table).tolist() == [4096.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("towards", [float("inf"), float("-inf"), 0.0, -0.0, 1.0, float("nan")])
def test_the_next_number_of_every_number(dtype: torch.dtype, towards: float) -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    y = torch.full_like(x, towards)
    found, expected = stagefold.compile(torch.nextafter, fullgraph=True)(x, y), torch.nextafter(x, y)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.view(torch.int16)[~found.isnan()], expected.view(torch.int16)[~expected.isnan()])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [0.5, -0.5, -1.0, 1 / 3])
def test_powers_of_what_has_no_root(dtype: torch.dtype, exponent: float) -> None:
    """A number as exponent, and a tensor of it, are other functions of -inf and of -0.0 in eager, by the dtype."""
    infinity = float("inf")
    x = torch.tensor([-infinity, -0.0, 0.0, infinity, -1.0, 2.0, 1e-30]).to(dtype)
    for power in (lambda x: x**exponent, lambda x: x ** torch.full_like(x, exponent)):
        found, expected = stagefold.compile(power, fullgraph=True)(x), power(x)
        torch.testing.assert_close(found, expected, equal_nan=True)
        assert torch.equal(found.signbit()[found == 0], expected.signbit()[expected == 0])
