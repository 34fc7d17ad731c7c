"""options={"numerics": "eager"}: compiled programs give eager's bits, in half precision and in float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import stagefold
from stagefold.errors import BadOption

EAGER = {"numerics": "eager"}
HALVES = (torch.bfloat16, torch.float16)
STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "shift": lambda x, y: x + 0.3,
    "scale": lambda x, y: x * 1.1,
    "subtract": lambda x, y: 0.7 - x,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / (y.abs() + 0.1),
    "mixed": lambda x, y: torch.add(x, y, alpha=0.3),
    "choose": lambda x, y: torch.where(x > 0.2, x, y),
    "clip": lambda x, y: x.clamp(-1.3, 0.9),
    "relu": lambda x, y: x.relu(),
    "tanh": lambda x, y: x.tanh(),
    "sigmoid": lambda x, y: x.sigmoid(),
    "gelu": lambda x, y: F.gelu(x),
    "silu": lambda x, y: F.silu(x),
    "root": lambda x, y: (x.abs() + 0.1).sqrt(),
    "exponential": lambda x, y: (-x.abs()).exp(),
    "widened": lambda x, y: (x.float() * 0.3).to(x.dtype),
}
ALL_BITS = ("erf", "sigmoid", "sinh", "log", "asin", "gelu", "mish", "softplus", "exp", "reciprocal")


def same_bits(found: Tensor | None, expected: Tensor | None) -> bool:
    if found is None or expected is None:
        return found is expected
    return found.dtype == expected.dtype and bool(((found == expected) | (found.isnan() & expected.isnan())).all())


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.booleans()), min_size=1, max_size=7),
    st.sampled_from((*HALVES, torch.float32)),
    st.integers(0, 1000),
)
def test_chains_of_pointwise_ops_are_eagers_bit_for_bit(
    plan: list[tuple[str, bool]], dtype: torch.dtype, seed: int
) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        for name, swapped in plan:
            x, y = (STEPS[name](y, x), x) if swapped else (STEPS[name](x, y), y)
        return x

    outcomes = []
    for call in (program, stagefold.compile(program, fullgraph=True, options=EAGER)):
        torch.manual_seed(seed)
        x, y = (torch.randn(11, 37, dtype=dtype, requires_grad=True) for _ in range(2))
        result = call(x, y)
        result.backward(torch.randn_like(result))
        outcomes.append((result, x.grad, y.grad))
    assert all(same_bits(*pair) for pair in zip(outcomes[1], outcomes[0], strict=True))


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_through_a_function(dtype: torch.dtype) -> None:
    functions = [getattr(torch, name, None) or getattr(F, name) for name in ALL_BITS]

    def program(x: Tensor) -> list[Tensor]:
        return [function(x) for function in functions]

    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    found = stagefold.compile(program, fullgraph=True, options=EAGER)(x)
    wrong = [name for name, a, b in zip(ALL_BITS, found, program(x), strict=True) if not same_bits(a, b)]
    assert wrong == []


@pytest.mark.parametrize("dtype", HALVES)
def test_a_block_with_norms_and_softmax(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm, linear = torch.nn.LayerNorm(24, dtype=dtype), torch.nn.Linear(24, 24, dtype=dtype)

    def program(x: Tensor) -> Tensor:
        return F.softmax(F.gelu(linear(norm(x))), -1).sum(0)

    x = torch.randn(9, 24, dtype=dtype, requires_grad=True)
    found = stagefold.compile(program, fullgraph=True, options=EAGER)(x)
    assert same_bits(found, program(x))


@pytest.mark.parametrize("dtype", HALVES)
def test_comparisons_with_a_number_do_not_depend_on_the_contract(dtype: torch.dtype) -> None:
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)

    def program(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x == 0.3, x > 0.2, x <= 0.7

    for found, expected in zip(stagefold.compile(program, fullgraph=True)(x), program(x), strict=True):
        assert torch.equal(found, expected)


def test_an_unknown_contract_is_refused() -> None:
    with pytest.raises(BadOption, match="one of default, eager"):
        stagefold.compile(lambda x: x, options={"numerics": "fast"})


def test_a_power_of_two_that_overflows_where_the_product_does_not() -> None:
    x, exponents = torch.tensor([1e-30, 1e30, 3.0]), torch.tensor([130, -200, 2])
    found = stagefold.compile(torch.ldexp, fullgraph=True)(x, exponents)
    assert torch.equal(found, torch.ldexp(x, exponents))
