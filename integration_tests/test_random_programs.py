"""Random programs of arithmetic, reductions, views, products and in-place writes: compiled as eager, gradients too.

A program is a plan: each step names an operation and which earlier values it takes. Every operation is total: where
the shapes do not fit it does something simpler, decided in Python, which capture has to follow.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import stagefold

Operation = Callable[[Tensor, Tensor], Tensor]


def total(operation: Operation) -> Operation:
    """The operation where its operands broadcast, else the same on the first operand alone."""

    def applied(x: Tensor, y: Tensor) -> Tensor:
        fits = x.shape == y.shape or x.dim() == 0 or y.dim() == 0
        return operation(x, y) if fits else operation(x, x)

    return applied


def matrices(x: Tensor, y: Tensor) -> Tensor:
    if x.dim() == 2 and y.dim() == 2:
        if x.shape[1] == y.shape[0]:
            return x @ y
        if x.shape[1] == y.shape[1]:
            return x @ y.t()
    return x * 2


def somewhere(operation: Callable[[Tensor], Tensor]) -> Operation:
    """An operation that needs a dimension and an element."""

    def applied(x: Tensor, y: Tensor) -> Tensor:
        return operation(x) if x.dim() > 0 and x.numel() > 0 else x

    return applied


def writing(write: Callable[[Tensor], object]) -> Operation:
    """A write into a fresh copy, which is the value."""

    def applied(x: Tensor, y: Tensor) -> Tensor:
        copy = x * 1
        if x.dim() > 0 and x.numel() > 0:
            write(copy)
        return copy

    return applied


OPERATIONS: dict[str, Operation] = {
    "add": total(lambda x, y: x + y),
    "subtract": total(lambda x, y: x - 2 * y),
    "multiply": total(lambda x, y: x * y.sigmoid()),
    "divide": total(lambda x, y: x / (y.abs() + 1)),
    "where": total(lambda x, y: torch.where(x > 0, x, y)),
    "maximum": total(torch.maximum),
    "relu": lambda x, y: x.relu(),
    "tanh": lambda x, y: x.tanh(),
    "exp": lambda x, y: (-x.abs()).exp(),
    "rsqrt": lambda x, y: (x.abs() + 1).rsqrt(),
    "gelu": lambda x, y: torch.nn.functional.gelu(x),
    "double": lambda x, y: x.double().float(),
    "mask": lambda x, y: (x > 0).float(),
    "sum": somewhere(lambda x: x.sum(-1)),
    "mean": somewhere(lambda x: x.mean(0, keepdim=True)),
    "amax": somewhere(lambda x: x.amax(-1, keepdim=True)),
    "variance": somewhere(lambda x: x.var(0, unbiased=False)),
    "softmax": somewhere(lambda x: x.softmax(-1)),
    "cumsum": somewhere(lambda x: x.cumsum(0)),
    "product": matrices,
    "transpose": lambda x, y: x.mT if x.dim() > 1 else x,
    "flatten": lambda x, y: x.flatten(),
    "unsqueeze": lambda x, y: x.unsqueeze(0) if x.dim() < 3 else x,
    "expand": lambda x, y: x.unsqueeze(0).expand(2, *x.shape) if x.dim() < 3 else x,
    "tail": somewhere(lambda x: x[1:]),
    "every second": somewhere(lambda x: x[..., ::2]),
    "rows": somewhere(lambda x: x[[0, -1, 0]]),
    "flip": somewhere(lambda x: x.flip(-1)),
    "concatenate": somewhere(lambda x: torch.cat([x, x * 2], -1)),
    "chunk": somewhere(lambda x: x.chunk(2, -1)[-1]),
    "pad": somewhere(lambda x: torch.nn.functional.pad(x, (1, 0))),
    "write row": writing(lambda x: x[0].zero_()),
    "write column": writing(lambda x: x[..., 0].add_(1)),
    "write every second": writing(lambda x: x[..., ::2].mul_(3)),
    "write all": writing(lambda x: x.mul_(2).clamp_(-1, 1)),
}

STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(1, 4), st.integers(1, 4)), min_size=2, max_size=10
)
SIZES = st.sampled_from((0, 1, 2, 3, 5, 8))


@st.composite
def inputs(draw: st.DrawFn) -> list[Tensor]:
    """One or two float tensors, row-major, permuted or expanded; some require grad."""
    shape = draw(st.lists(SIZES, max_size=2))
    torch.manual_seed(draw(st.integers(0, 9)))
    drawn = []
    for layout in draw(
        st.lists(st.sampled_from(("plain", "leaf", "leaf", "permuted", "expanded")), min_size=1, max_size=2)
    ):
        tensor = torch.randn(shape)
        if layout == "permuted" and len(shape) == 2:
            tensor = torch.randn(shape[::-1]).t()
        elif layout == "expanded" and shape:
            tensor = torch.randn(1, *shape[1:]).expand(shape)
        drawn.append(tensor.requires_grad_(layout == "leaf"))
    return drawn


def program_of(
    steps: list[tuple[str, int, int]], operations: dict[str, Operation] = OPERATIONS
) -> Callable[..., tuple[Tensor, ...]]:
    """The function that a plan means."""

    def program(*given: Tensor) -> tuple[Tensor, ...]:
        values = list(given)
        for name, first, second in steps:
            x, y = values[-min(first, len(values))], values[-min(second, len(values))]
            values.append(operations[name](x, y))
        return tuple(values[-2:])

    return program


def run(program: Callable[..., tuple[Tensor, ...]], given: list[Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
    """Results and gradients on fresh leaves of the same layout."""
    leaves = [t.detach().requires_grad_(t.requires_grad) for t in given]
    results = list(program(*leaves))
    roots = [r for r in results if r.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(r) for r in roots])
    return results, [t.grad for t in leaves]


@pytest.mark.filterwarnings("ignore:runs plain")
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, given_tensors=inputs())
def test_random_programs_agree_with_eager(steps: list[tuple[str, int, int]], given_tensors: list[Tensor]) -> None:
    program = program_of(steps)
    expected, expected_gradients = run(program, given_tensors)
    found, gradients = run(stagefold.compile(program, fullgraph=True), given_tensors)
    for theirs, ours in zip(expected, found, strict=True):
        assert (theirs.shape, theirs.dtype, theirs.requires_grad) == (ours.shape, ours.dtype, ours.requires_grad)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    for theirs, ours in zip(expected_gradients, gradients, strict=True):
        assert (theirs is None) == (ours is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
