"""Captured code that seeds the random streams: what is drawn, and where the streams stand afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bytecap import executor, optimize
from bytecap.errors import UnsupportedCall


def seeded(x: torch.Tensor, seed: Any) -> torch.Tensor:
    torch.manual_seed(seed)
    return x * torch.rand(3)


def seeded_twice(x: torch.Tensor, seed: Any) -> Any:
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    return torch.manual_seed(seed + 1), torch.nn.functional.dropout(x + torch.rand(3), 0.5)


def seeded_in_vain(x: torch.Tensor, seed: Any) -> torch.Tensor:
    y = x + 1
    torch.manual_seed(seed)
    return y


def nothing_else(x: torch.Tensor, seed: Any) -> Any:
    return torch.manual_seed(seed)


def with_an_index(x: torch.Tensor, seed: Any) -> torch.Tensor:
    y = x.clone()
    torch.manual_seed(seed)
    return (y * torch.rand(3)).gather(0, x.long())


def checked(x: torch.Tensor, seed: Any) -> torch.Tensor:
    torch.manual_seed(seed)
    y = torch.rand(3)
    if not (x < 3).all():
        raise ValueError("large")
    return x * y


def between_draws(x: torch.Tensor, seed: Any) -> torch.Tensor:
    y = x * torch.rand(3)
    torch.manual_seed(seed)
    return y + torch.rand(3)


def observed(function: Callable[..., Any], *args: Any) -> tuple[str, torch.Tensor]:
    """The result or the exception, and what is drawn next."""
    torch.manual_seed(11)
    try:
        result = str(function(*args))
    except Exception as error:
        result = repr(error)
    return result, torch.rand(2)


def assert_same(program: Callable[..., Any], compiled: Callable[..., Any], *args: Any) -> None:
    (expected, after), (got, then) = observed(program, *args), observed(compiled, *args)
    assert got == expected
    assert torch.equal(then, after)


@pytest.mark.parametrize("program", [seeded, seeded_twice, seeded_in_vain, nothing_else, with_an_index, checked])
@pytest.mark.parametrize("fullgraph", [True, False])
def test_the_streams_are_as_in_plain_code(program: Callable[..., Any], fullgraph: bool) -> None:
    compiled = optimize(program, lambda capture, _: executor(capture), fullgraph=fullgraph)
    for seed in (3, 3, 4, -1, 3):  # the captures for several seeds share their graph
        for x in (torch.arange(3.0), torch.arange(3.0) + 7):  # an index out of range, a check that fails
            assert_same(program, compiled, x, seed)


@pytest.mark.parametrize("seed", ["text", 1 << 70, None])
@pytest.mark.filterwarnings("ignore::bytecap.CaptureWarning")
def test_what_is_no_seed_raises(seed: Any) -> None:
    assert_same(seeded, optimize(seeded, lambda capture, _: executor(capture)), torch.ones(3), seed)


@pytest.mark.filterwarnings("ignore::bytecap.CaptureWarning")
def test_behind_what_draws_the_graph_ends() -> None:
    captures = []

    def backend(capture: Any, inputs: Any) -> Any:
        captures.append(capture)
        return executor(capture)

    compiled = optimize(between_draws, backend)
    for seed in (3, 4, 3):
        assert_same(between_draws, compiled, torch.ones(3), seed)
    assert {len(capture.graph.nodes) for capture in captures} == {2}
    with pytest.raises(UnsupportedCall, match="behind what draws"):
        optimize(between_draws, backend, fullgraph=True)(torch.ones(3), 3)


def test_a_gradient_function_may_not_seed() -> None:
    class Seeding(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            torch.manual_seed(3)
            return x * torch.rand(3)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    compiled = optimize(Seeding.apply, lambda capture, _: executor(capture), fullgraph=True)
    with pytest.raises(UnsupportedCall):
        compiled(torch.ones(3))
