"""Random programs that are compiled once for many sizes: documents and compiled code give what eager gives at each.

The programs are those of `test_random_programs`, with steps that compute on sizes. Sizes of 0 and 1 and of the other
branches of the program are programs of their own; what is right at one size must not be taken for another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import bytecap
import primops
from aotgrad import AotGrad, PartitionStage, bind, bind_capture
from integration_tests.test_random_programs import OPERATIONS, Operation, program_of, run, somewhere
from primops.interpret import Interpreter
from stagefold.backends import resolve_backend
from stagewire.verify import verify

functional = torch.nn.functional


def images(operation: Callable[[Tensor], Tensor]) -> Operation:
    """An operation on one image of one channel."""

    def applied(x: Tensor, y: Tensor) -> Tensor:
        return operation(x[None, None])[0, 0] if x.dim() == 2 and min(x.shape) > 0 else x

    return applied


OF_SIZES: dict[str, Operation] = {
    "count": lambda x, y: x * x.numel(),
    "root": somewhere(lambda x: x / math.sqrt(x.shape[-1])),
    "reciprocal": somewhere(lambda x: x * (1 / x.shape[0]) + x.shape[0] ** -0.5),
    "half": somewhere(lambda x: x[: x.shape[0] // 2 + 1]),
    "most": somewhere(lambda x: x[..., : math.ceil(x.shape[-1] * 0.75)]),
    "positions": somewhere(lambda x: x + torch.arange(x.shape[-1])),
    "spaced": somewhere(lambda x: x * torch.linspace(-1, 1, x.shape[-1])),
    "last": somewhere(lambda x: x[x.shape[0] - 1]),
    "deviation": somewhere(lambda x: x.std(-1) if x.shape[-1] > 1 else x.sum(-1)),
    "norm": somewhere(lambda x: functional.layer_norm(x, x.shape[-1:])),
    "triangle": lambda x, y: x.tril(1) if x.dim() > 1 else x,
    "roll": somewhere(lambda x: x.roll(x.shape[-1] // 2, -1)),
    "repeat": somewhere(lambda x: x.repeat_interleave(2, 0)),
    "filled": lambda x, y: x.new_full(x.shape, x.numel() / 3) + x,
    "gather": somewhere(lambda x: x.gather(-1, x.argsort(dim=-1, stable=True))),
    "attention": lambda x, y: functional.scaled_dot_product_attention(x, x, x) if x.dim() == 3 and x.numel() else x,
    "joined rows": somewhere(lambda x: torch.cat([x[1:], x[:1]])),
    "wide": images(lambda x: functional.interpolate(x, scale_factor=1.5)),
    "window": images(lambda x: functional.max_pool2d(functional.pad(x, (1, 1, 1, 1)), 3, 2)),
    "write half": somewhere(lambda x: (x * 1).index_fill_(0, torch.arange(x.shape[0] // 2), 0.5)),
}
OPERATIONS_OF_ALL = {**{name: step for name, step in OPERATIONS.items() if name != "rows"}, **OF_SIZES}

STEPS = st.lists(
    st.tuples(st.sampled_from([*sorted(OPERATIONS_OF_ALL), *sorted(OF_SIZES)]), st.integers(1, 4), st.integers(1, 4)),
    min_size=2, max_size=7,
)  # fmt: skip
SHAPES = st.lists(st.tuples(*[st.sampled_from((0, 1, 2, 3, 5, 8, 17, 64))] * 2), min_size=2, max_size=4)


class Documents:
    """A backend that interprets the document of a stage."""

    takes_symbols = True

    def __init__(self, until: str) -> None:
        self.until = until

    def __call__(self, capture: Any, inputs: Any) -> Any:
        grad = AotGrad().run(capture)
        verify(grad)
        if self.until == "grad":
            made = bind_capture(capture)
        else:
            prim = primops.Primops().run(grad)
            verify(prim)
            prim = PartitionStage().run(prim)
            halves = [None if graph is None else Interpreter(graph) for graph in (prim.forward, prim.backward)]
            made = bind(prim.binding, *halves)
        made.assumes = grad.binding.assumptions
        return made


def check(steps: list[tuple[str, int, int]], shapes: list[tuple[int, int]], backend: Any, rank: int) -> None:
    program = program_of(steps, OPERATIONS_OF_ALL)
    compiled = bytecap.optimize(program, backend, dynamic=True, recompile_limit=64)
    for at, shape in enumerate(shapes):
        torch.manual_seed(at)
        given_tensors = [torch.randn(shape[-rank:], requires_grad=True), torch.randn(shape[-rank:])]
        try:
            expected, expected_gradients = run(program, given_tensors)
        except RuntimeError:
            continue  # no program at this size
        found, gradients = run(compiled, given_tensors)
        for theirs, ours in zip(expected, found, strict=True):
            assert (theirs.shape, theirs.dtype, theirs.requires_grad) == (ours.shape, ours.dtype, ours.requires_grad)
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3, equal_nan=True)
        for theirs, ours in zip(expected_gradients, gradients, strict=True):
            assert (theirs is None) == (ours is None)
            if theirs is not None:
                torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2, equal_nan=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("until", ["grad", "prim"])
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, shapes=SHAPES, rank=st.integers(1, 2))
def test_documents(until: str, steps: list[tuple[str, int, int]], shapes: list[tuple[int, int]], rank: int) -> None:
    check(steps, shapes, Documents(until), rank)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, shapes=SHAPES, rank=st.integers(1, 2))
def test_compiled(steps: list[tuple[str, int, int]], shapes: list[tuple[int, int]], rank: int) -> None:
    backend, _ = resolve_backend("stagefold", None, {"cache": False}, None)
    check(steps, shapes, backend, rank)
