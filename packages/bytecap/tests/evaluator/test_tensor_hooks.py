"""Programs run plain and captured: hooks on tensors from outside."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bytecap import executor, optimize
from bytecap.testing import Programs

PROGRAMS = Programs()


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


@PROGRAMS.add(leaf)
def removed_again(x):
    handle = x.register_hook(lambda g: g * 2)
    handle.remove()
    return x * 2


@PROGRAMS.add(lambda: torch.ones(3))
def on_what_needs_no_gradient(x):
    try:
        x.register_hook(lambda g: g * 2)
    except RuntimeError as error:
        return str(error), x * 2


@PROGRAMS.add(lambda: leaf() * 2)
def on_what_is_no_leaf(x):
    try:
        x.register_post_accumulate_grad_hook(lambda p: None)
    except RuntimeError as error:
        return str(error), x * 2


@PROGRAMS.add(leaf, refusal="BC002")
def on_an_intermediate(x):
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return y


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


class Hooked(nn.Module):
    """Puts hooks on its weight and on its input in every call; what they see is noted."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(3, 2)
        self.seen = []

    def note(self, gradient):
        self.seen.append(("weight", gradient.sum().item()))

    def forward(self, x, factor):
        self.layer.weight.register_hook(self.note)
        self.layer.bias.register_post_accumulate_grad_hook(lambda p: self.seen.append(("bias", p.grad.sum().item())))
        handle = x.register_hook(lambda g: g * factor)
        x.register_hook(lambda g: g + 1)
        return self.layer(x).square(), handle


def test_hooks_run_in_the_backward():
    outcomes = []
    for captured in (False, True):
        module = Hooked()
        call = optimize(module, lambda capture, _: executor(capture), fullgraph=True) if captured else module
        gradients = []
        for number in range(3):
            x = torch.ones(4, 3, requires_grad=True)
            y, handle = call(x, 3.0)
            if number == 1:
                handle.remove()
            y.sum().backward()
            gradients.append(x.grad)
        outcomes.append((gradients, module.seen))
    (expected, seen), (found, noted) = outcomes
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b)
    assert [name for name, _ in seen] == [name for name, _ in noted]
    assert [value for _, value in seen] == pytest.approx([value for _, value in noted])
