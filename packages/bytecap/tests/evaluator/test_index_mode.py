"""Subscripts inside of `TransformGetItemToIndex`: 0-dim tensors index, mapped by torch.vmap too."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.overrides import TorchFunctionMode

from bytecap import executor, optimize
from bytecap.testing import check
from bytecap.testing.breaking import forced_breaks, once

PLACES = [(None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)]


def _mask(is_token: torch.Tensor, segments: torch.Tensor, length: int) -> torch.Tensor:
    def allowed(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query >= key) & is_token[batch, key] & (segments[batch, query] == segments[batch, key])

    mapped = allowed
    for dims in PLACES:
        mapped = torch.vmap(mapped, in_dims=dims, out_dims=0)
    with TransformGetItemToIndex():
        return mapped(torch.arange(2), torch.arange(1), torch.arange(length), torch.arange(length))


def _subscripts(x: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with TransformGetItemToIndex():
        inside = x[place], x[0], x[place, 1], x[1:], x[..., 0]
    return (*inside, x[0], x[place])


def _arguments() -> tuple[tuple[torch.Tensor, torch.Tensor], dict[str, object]]:
    return (torch.arange(12.0).view(3, 4), torch.tensor(2)), {}


def test_a_mask_mapped_over_its_places_is_one_graph() -> None:
    is_token, segments = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]]).bool(), torch.arange(10).view(2, 5) // 3
    check(lambda: (_mask, ((is_token.clone(), segments.clone(), 5), {})))


def test_parts_that_are_tensors_or_ints_index_inside_and_view_outside() -> None:
    check(lambda: (_subscripts, _arguments()))


def test_gradients_reach_what_is_indexed() -> None:
    weight = torch.randn(3, 4, requires_grad=True)
    captured = optimize(_subscripts, lambda capture, inputs: executor(capture))
    grads = [
        torch.autograd.grad(sum(part.sum() for part in call(weight, torch.tensor(1))), weight)[0]
        for call in (_subscripts, captured)
    ]
    assert torch.equal(*grads)


@pytest.mark.parametrize("count", range(4, 24, 3))
def test_a_break_inside_leaves_the_mode_entered(count: int) -> None:
    (x, place), _ = _arguments()
    with forced_breaks(once(count)):
        found = optimize(_subscripts, lambda capture, inputs: executor(capture))(x, place)
    assert all(map(torch.equal, found, _subscripts(x, place)))
    assert torch._C._len_torch_function_stack() == 0


def test_other_modes_are_refused() -> None:
    class Doubling(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.Tensor.add else result

    def program(x: torch.Tensor) -> torch.Tensor:
        with Doubling():
            return x + 1

    assert "BC002" in check(lambda: (program, ((torch.ones(2),), {})), whole=False).codes
