"""Compiled kernels on hostile memory and numbers: huge index arithmetic, odd starts, sizes of 0, 1 and primes, the
numbers at the edges of a type. Results are eager's, bit for bit where one rounding is all there is."""

from __future__ import annotations

import pytest
import torch

import stagefold


def check(function, *inputs: torch.Tensor, exact: bool = True) -> None:
    expected = function(*inputs)
    found = stagefold.compile(function, fullgraph=True)(*inputs)
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {}
    torch.testing.assert_close(found, expected, equal_nan=True, **tolerance)
    if isinstance(expected, torch.Tensor) and expected.is_floating_point():
        assert torch.equal(torch.signbit(found), torch.signbit(expected))


def test_offsets_beyond_32_bits() -> None:
    """Views of one small storage, whose strides make offsets of more than 2**31 bytes and elements."""
    storage = torch.empty(0, dtype=torch.uint8)
    try:
        storage = torch.empty((1 << 31) + 64, dtype=torch.uint8)  # touched in a few places alone
    except RuntimeError:
        pytest.skip("no address space")
    x = storage.as_strided((2, 5), ((1 << 31) + 16, 3))
    x.copy_(torch.arange(10, dtype=torch.uint8).view(2, 5))
    check(lambda x: x * 3 + 1, x)
    check(lambda x: x.sum(1), x)
    check(lambda x: x.flip(0).t() + 2, x)


def test_more_than_2_to_the_31_elements_of_one() -> None:
    x = torch.full((1,), 3, dtype=torch.int8).expand((1 << 31) + 5)
    check(lambda x: x[-7:] * 2 + x[:7], x)
    check(lambda x: (x[(1 << 31) : (1 << 31) + 3] == 3).all(), x)


def test_index_arithmetic_beyond_32_bits() -> None:
    check(lambda x: torch.arange(1 << 33, (1 << 33) + 9)[x] * 5, torch.tensor([0, 8, 3, -1]))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 13, 17, 31, 61, 127, 257, 1021])
def test_sizes(size: int) -> None:
    torch.manual_seed(size)
    x, y = torch.randn(size, 3), torch.randn(3, size)
    check(lambda x, y: torch.relu(x * 2 - y.t()), x, y)
    check(lambda x: (x.double().sum(0), x.double().sum(1)), x, exact=False)
    check(lambda y: torch.softmax(y, 0), y, exact=False)


@pytest.mark.parametrize(("first", "second"), [(0, 5), (1, 17), (31, 97), (16, 16), (257, 0), (1, 1)])
def test_pieces_of_any_size(first: int, second: int) -> None:
    """Concatenations and padding, which are cut into a loop for each piece; zeros keep their signs."""
    x, y = torch.randn(5, first), torch.randn(5, second)
    x[:, ::3], y[:, ::2] = -0.0, float("nan")
    check(lambda x, y: -torch.cat((x, y), 1), x, y)
    check(lambda x, y: torch.cat((x, y, x), 1).t() * 2, x, y)
    check(lambda x, y: torch.cat((x.t(), y.t(), x.t())).relu(), x, y)
    check(lambda x: -torch.nn.functional.pad(x, (20, first + 2, 1, 2)), x)
    check(lambda x, y: torch.cat((y, x), 1)[:, 1:].flip(1) + 1, x, y)


@pytest.mark.parametrize("offset", range(1, 8, 2))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int16, torch.uint8])
def test_memory_that_begins_anywhere(offset: int, dtype: torch.dtype) -> None:
    x = torch.arange(200).to(dtype)[offset : offset + 150].view(10, 15)
    check(lambda x: x * 2 + 1, x)
    check(lambda x: x.t() * 2 + x.t(), x)


EDGES = [
    0.0,
    -0.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    1e-45,
    -1e-45,
    1.1754942e-38,
    3.4028235e38,
    -3.4028235e38,
    1.0,
    -2.5,
]


def test_edges_of_floats() -> None:
    x = torch.tensor(EDGES * 3)
    y = x.flip(0).contiguous()
    check(lambda x, y: (x + y, x - y, x * y, x / y), x, y)
    check(lambda x, y: torch.where(x == y, -x, y), x, y)
    check(lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y)), x, y)
    for bounded in (torch.relu, lambda x: x.clamp(-0.0, 1), lambda x: x.clamp(max=0.0), lambda x: x.clamp(min=-0.0)):
        check(bounded, x)  # with the signs of zeros
    check(lambda x: (x.abs(), -x, x.sign(), x.floor(), x.round(), x.trunc()), x)
    check(lambda x: (x.amax(), x.argmax(), x.isnan().sum()), x)
    check(lambda x: x[5:7] * 0.5 + x[5:7], x)  # denormal numbers stay


def test_reductions_at_the_edges() -> None:
    rows = [
        [float("-inf")] * 5, [float("inf"), 1.0, 2.0, 3.0, 4.0], [1.0, float("nan"), 2.0, 3.0, float("inf")],
        [3e38, 3e38, -3e38, 1.0, 2.0], [1e-45, 2e-45, 3e-45, 0.0, -0.0], [-0.0] * 5, [1e30, -1e30, 1e30, -1e30, 1.0],
    ]  # fmt: skip
    x = torch.tensor(rows)
    check(lambda x: (x.amax(1), x.amin(1), x.argmax(1), x.argmin(1)), x)
    check(lambda x: x[3:].t().amax(0), x)
    check(lambda x: (x.logsumexp(1), torch.softmax(x, 1), x.sum(1)), x, exact=False)
    check(lambda x: (x[4:].var(1), x[4:].double().mean(1)), x, exact=False)


def test_variance_where_sums_cancel() -> None:
    """In one pass over float32, by the distance from the first element: as near to float64 as eager is."""
    torch.manual_seed(0)
    x = torch.randn(6, 1000)
    x[0] += 1e6  # far from zero
    x[1, 0] = 1e5  # the first is the outlier
    x[2, 500] = -1e6
    x[3] = 0.1  # all equal: exactly zero
    x[4] *= 1e30  # squares beyond float32
    x[5] = torch.arange(1000) % 2 + 2.0**23
    for dim, rows in ((1, x), (0, x.t().contiguous()), (None, x[2])):
        found = stagefold.compile(lambda x, dim=dim: torch.var_mean(x, dim), fullgraph=True)(rows)
        expected = torch.var_mean(rows.double(), dim)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other.float(), rtol=2e-7, atol=0.0)
    assert found[0].isfinite()
    assert not stagefold.compile(lambda x: x.var(1), fullgraph=True)(x[3:4]).any()
    check(lambda x: (x.var(), x.std(0)), torch.tensor([float("nan"), 1.0, float("inf")]))
    check(lambda x: (x.var(0), x.var(1), x.var()), torch.tensor([[3.5]]))
    check(lambda x: (x.var(1), x.var(0, correction=0)), torch.empty(2, 0))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_integers_overflow_and_divide(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.min, limits.min + 1, limits.max, 0, 1, limits.max // 2], dtype=dtype)
    y = torch.tensor([1, 2, 3, 5, 7, 100], dtype=dtype)
    check(lambda x, y: (x + y, x - y, x * y, -x), x, y)
    check(lambda x, y: (x // y, x % y, torch.div(x, y, rounding_mode="trunc")), x, y)
    check(lambda x: x.sum(), x)
    with pytest.raises((RuntimeError, ZeroDivisionError)):
        stagefold.compile(lambda x, y: x // y)(x, torch.zeros_like(y))
