"""Programs run plain and captured: hooks on tensors from outside."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from bytecap import Captured, executor, graph_break, optimize
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


@PROGRAMS.add(leaf)
def on_an_intermediate(x):
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return y


@PROGRAMS.add(leaf, refusal="BC002")
def on_an_intermediate_with_uses(x):
    y = x * 2
    z = y.sin()
    y.register_hook(lambda g: g * 3)
    return y + z


@PROGRAMS.add(leaf, refusal="BC002")
def twice_on_an_intermediate(x):
    y = x * 2
    y.register_hook(lambda g: g * 3)
    y.register_hook(lambda g: g + 1)
    return y


@PROGRAMS.add(leaf, refusal="BC002")
def on_a_view(x):
    y = x * 2
    part = y[1:]
    part.register_hook(lambda g: g * 3)
    part.mul_(2)
    return y


@PROGRAMS.add(leaf, refusal="BC002")
def on_an_intermediate_with_a_side_effect(x):
    seen = []
    y = x * 2
    y.register_hook(seen.append)
    return y, seen


@PROGRAMS.add(leaf, refusal="BC002")
def with_a_count_of_its_own(x):
    count = 0

    def hook(gradient):
        nonlocal count
        count += 1
        return gradient * 2

    y = x * 2
    y.register_hook(hook)
    return y, count


@PROGRAMS.add(leaf, refusal="BC002")
def with_a_variable_that_is_assigned_again(x):
    factor = 2.0
    y = x * 2
    y.register_hook(lambda g: g * factor)
    factor = 3.0
    return y * factor


@PROGRAMS.add(leaf, refusal="BC002")
def removed_from_an_intermediate(x):
    y = x * 2
    handle = y.register_hook(lambda g: g * 3)
    handle.remove()
    return y


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


def clamps(x):
    y = x * 2
    y.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return (y * y).sum()


def scales_by_a_partial(x):
    y = x.cos()
    y.register_hook(functools.partial(torch.mul, other=3.0))
    return y * 2


def looks_alone(x):
    y = x.cos()
    y.register_hook(lambda g: None)
    return y * 2


def writes_afterwards(x):
    y, factor = x.cos(), x.sum().detach()
    y.register_hook(lambda g: g * factor)
    y.mul_(2)
    return y * 2


def breaks_afterwards(x):
    y = x.cos()
    y.register_hook(lambda g: g * 3)
    graph_break()
    y.mul_(2)
    return y * y


@pytest.mark.parametrize(
    "program",
    [clamps, scales_by_a_partial, looks_alone, writes_afterwards, breaks_afterwards],
    ids=lambda p: p.__name__,
)
def test_hooks_on_intermediates_are_in_the_graph(program):
    events = []
    captured = optimize(program, lambda capture, _: executor(capture), on_event=events.append)
    for number in range(2):
        x = torch.linspace(-1, 1 + number, 5).requires_grad_()
        twin = x.detach().clone().requires_grad_()
        found, expected = captured(x), program(twin)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        found.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(x.grad, twin.grad, rtol=0, atol=0)
    captures = [event.capture for event in events if isinstance(event, Captured)]
    assert sum(len(capture.functions) for capture in captures) == 1


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
