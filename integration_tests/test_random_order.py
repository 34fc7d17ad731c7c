"""Drawn programs of random ops: each draws what eager draws, in program order, whether anything uses it or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import stagefold

Draw = Callable[[Tensor], Tensor]

DRAWS: dict[str, Draw] = {
    # factories
    "rand": lambda x: torch.rand(3, x.shape[1]),
    "randn_like": torch.randn_like,
    "randint": lambda x: torch.randint(0, 9, (x.shape[0],)),
    "randint_like": lambda x: torch.randint_like(x, 2, 7),
    "randperm": lambda x: torch.randperm(x.shape[0]),
    "normal of a size": lambda x: torch.normal(0.0, 1.0, (4, x.shape[0])),
    # functions
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli of a number": lambda x: torch.bernoulli(x.detach(), 0.3),
    "poisson": lambda x: torch.poisson(x.abs() + 3),
    "binomial": lambda x: torch.binomial(torch.full_like(x, 9.0), x.detach().sigmoid()),
    "gamma": lambda x: torch._standard_gamma(x.abs() + 1),
    "dirichlet": lambda x: torch._sample_dirichlet(x.detach().abs() + 1),
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 1),
    "normal of means": lambda x: torch.normal(x, 2.0),
    "normal of both": lambda x: torch.normal(x, x.abs() + 1),
    "rrelu": lambda x: torch.rrelu(x - 1, 0.1, 0.3, True),
    "dropout": lambda x: F.dropout(x + 1, 0.4),
    "native_dropout": lambda x: torch.native_dropout(x + 1, 0.4, True)[0],
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "feature_dropout": lambda x: F.dropout1d(x.unsqueeze(0), 0.5),
    # in place, on fresh tensors
    "normal_": lambda x: x.clone().normal_(1.0, 2.0),
    "uniform_": lambda x: torch.empty_like(x).uniform_(-1, 1),
    "exponential_": lambda x: torch.zeros(5, x.shape[0]).exponential_(),
    "geometric_": lambda x: x.clone().geometric_(0.3),
    "cauchy_": lambda x: x.clone().cauchy_(),
    "log_normal_": lambda x: x.new_empty(7).log_normal_(),
    "random_": lambda x: x.clone().random_(0, 50),
    "random_ of any": lambda x: torch.empty(3, dtype=torch.int64).random_(),
    "bernoulli_": lambda x: x.clone().bernoulli_(0.5),
    "bernoulli_ of a tensor": lambda x: x.clone().bernoulli_(x.detach().sigmoid()),
    "rrelu_": lambda x: F.rrelu(x.clone(), 0.1, 0.2, training=True, inplace=True),
    "dropout_": lambda x: F.dropout(x.clone(), 0.5, inplace=True),
    "init": lambda x: torch.nn.init.kaiming_normal_(torch.empty(3, 3)),
    # modules
    "Dropout": torch.nn.Dropout(0.3),
    "RReLU": torch.nn.RReLU(),
    "mse_loss of noise": lambda x: F.mse_loss(x, torch.randn_like(x)),
}

Step = tuple[str, bool]


def program(steps: list[Step]) -> Callable[[Tensor], list[Tensor]]:
    def run(x: Tensor) -> list[Tensor]:
        found = [x * 2]
        for name, used in steps:
            drawn = DRAWS[name](x)
            if used:
                found.append(drawn)
        return found

    return run


def outcome(call: Callable[[Tensor], list[Tensor]], x: Tensor, trains: bool) -> list[Tensor | None]:
    """Results, the gradient, and what the stream gives next."""
    x = x.clone().requires_grad_(trains)
    torch.manual_seed(7)
    results = call(x)
    floats = [one.sum() for one in results if one.requires_grad]
    if floats:
        sum(floats).backward()  # type: ignore[union-attr]
    return [*(one.detach() for one in results), x.grad, torch.get_rng_state()]


def check(steps: list[Step], sizes: tuple[tuple[int, int], ...], dynamic: bool, trains: bool) -> None:
    plain = program(steps)
    compiled = stagefold.compile(program(steps), dynamic=dynamic or None, fullgraph=True)
    for rows, columns in sizes:
        x = torch.linspace(-2, 2, rows * columns).reshape(rows, columns)
        torch.testing.assert_close(outcome(compiled, x, trains), outcome(plain, x, trains), rtol=1e-4, atol=1e-5)


STEPS = st.lists(st.tuples(st.sampled_from(sorted(DRAWS)), st.booleans()), min_size=2, max_size=6)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(STEPS, st.booleans())
def test_fixed_sizes(steps: list[Step], trains: bool) -> None:
    check(steps, ((6, 8),), False, trains)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(STEPS, st.booleans())
def test_symbolic_sizes(steps: list[Step], trains: bool) -> None:
    check(steps, ((6, 8), (5, 17)), True, trains)


@pytest.mark.parametrize("name", DRAWS)
def test_beside_others_used_or_not(name: str) -> None:
    check([(name, False), ("dropout", True), (name, True), ("poisson", True)], ((6, 8),), False, False)
