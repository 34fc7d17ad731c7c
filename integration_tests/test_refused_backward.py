"""What eager refuses in a backward: the call goes through, and the backward raises eager's exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stagefold
from stagefold.errors import RunsPlain


def overwritten(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    y.add_(1)
    return y, x * 2


@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_saved_tensor_that_is_overwritten_raises_in_the_backward(fullgraph: bool) -> None:
    found = []
    compiled: Callable[..., Any] = stagefold.compile(overwritten, fullgraph=fullgraph)
    for call in (overwritten, compiled):
        x = torch.linspace(-1, 1, 3, requires_grad=True)
        if call is compiled:
            with pytest.warns(RunsPlain, match="its backward will raise"):
                y, z = call(x)
        else:
            y, z = call(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as raised:
            y.sum().backward()
        z.sum().backward()
        found.append((y.detach(), x.grad, str(raised.value)))
    assert found[1][2] == found[0][2]
    torch.testing.assert_close(found[1][:2], found[0][:2], rtol=0, atol=0)


def test_a_backward_whose_kernels_refuse_the_dtypes_raises_in_the_backward() -> None:
    def divided(x: Tensor, n: Tensor) -> Tensor:
        return torch.addcdiv(x, x, n)

    n = torch.ones(3, dtype=torch.int64)
    for call in (divided, stagefold.compile(divided)):
        x = torch.linspace(1, 2, 3, requires_grad=True)
        y = call(x, n)
        torch.testing.assert_close(y, divided(x, n), rtol=0, atol=0)
        with pytest.raises(RuntimeError, match="can't be cast"):
            y.sum().backward()
