"""LSTMs with gradients: oneDNN's whole layers, as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stagefold


def raised(function: Callable[..., Any], *args: Any) -> str | None:
    """The class and message of what a call raises."""
    try:
        function(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_lstm_training(autocast: bool) -> None:
    """One call of oneDNN in each direction, as in eager; its work space goes from one to the other.

    Under autocast eager itself refuses where oneDNN has no half precision.
    """
    torch.manual_seed(0)
    eager = torch.nn.LSTM(6, 9, 2, batch_first=True, bidirectional=True)
    ours = copy.deepcopy(eager)
    compiled = stagefold.compile(ours)
    for length in (5, 5, 7):
        x = torch.randn(3, length, 6, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            refusal = raised(eager, x)
            if refusal is not None:
                assert raised(compiled, y) == refusal
                continue
        for model, given in ((eager, x), (compiled, y)):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                out, (hidden, cell) = model(given)
            (out.float().square().mean() + hidden.float().sum() - cell.float().mean()).backward()
        torch.testing.assert_close(y.grad, x.grad, rtol=2e-2 if autocast else 1e-5, atol=1e-2 if autocast else 1e-6)
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        if theirs.grad is None:
            assert mine.grad is None
            continue
        torch.testing.assert_close(
            mine.grad, theirs.grad, rtol=2e-2 if autocast else 1e-5, atol=3e-2 if autocast else 1e-5
        )


def test_the_gradient_of_an_lstms_gradient() -> None:
    """oneDNN has none: it is that of the cells, written out."""
    torch.manual_seed(0)
    eager, x = torch.nn.LSTM(3, 4), torch.randn(5, 2, 3, requires_grad=True)
    compiled = stagefold.compile(eager)
    found = []
    for model, enabled in ((eager, False), (compiled, True)):
        with torch.backends.mkldnn.flags(enabled=enabled):
            (gradient,) = torch.autograd.grad(model(x)[0].square().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(gradient.square().sum(), x)[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_half_precision_of_any_sizes() -> None:
    """A whole layer where oneDNN computes in bfloat16; else its steps, whose number is fixed."""
    torch.manual_seed(0)
    layer = torch.nn.LSTM(6, 9, bidirectional=True).bfloat16()
    compiled = stagefold.compile(layer, dynamic=True)
    with torch.no_grad():
        for size in ((5, 3), (5, 7), (4, 2)):
            x = torch.randn(*size, 6, dtype=torch.bfloat16)
            torch.testing.assert_close(compiled(x), layer(x), rtol=2e-2, atol=1e-2)
