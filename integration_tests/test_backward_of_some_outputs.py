"""The backward of one output after that of another: allowed, or refused as freed, where eager does so."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stagefold

Program = Callable[..., tuple[torch.Tensor, ...]]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def written(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.sin()
    z = w.cos()
    z.mul_(2)
    return y, z


PROGRAMS: dict[str, Program] = {
    "other inputs": lambda x, w: (x.sin(), w.cos()),
    "one input": lambda x, w: (x.sin(), x.cos()),
    "an input that both save": lambda x, w: (x * w, x / w),
    "a value that is made twice": lambda x, w: (x.exp() * 2, x.exp() + w),
    "a shared value that is saved": lambda x, w: (lambda y: (y * 2, y + w))(x.exp()),
    "a shared value that saves nothing": lambda x, w: (lambda y: (y * w, y + w))(x * 2),
    "a shared value that its users save": lambda x, w: (lambda y: (y.sin(), y.cos()))(x + 1),
    "nothing is saved": lambda x, w: (x * 2, w + x),
    "one is made of the other": lambda x, w: (lambda y: (y, y.sin()))(x.exp()),
    "three": lambda x, w: (lambda y: (y * 2, w.exp(), y.sin()))(x.exp()),
    "three, two of them free": lambda x, w: (x.sin(), w.exp(), x.cos() * w.detach()),
    "views": lambda x, w: (lambda y: (y[:1], y[1:]))(x.exp()),
    "views of other results": lambda x, w: (x.exp()[:2], w.exp()[1:]),
    "a custom function each": lambda x, w: (Doubled.apply(x), Doubled.apply(w)),
    "a custom function": lambda x, w: (lambda y: (y * 2, y.sin() * w))(Doubled.apply(x)),
    "saved outputs": lambda x, w: (x.exp(), w.sigmoid()),
    "products": lambda x, w: (x.outer(w), w.outer(w)),
    "losses": lambda x, w: ((x - w).square().mean(), w.softmax(0).log().sum()),
    "written": written,
}

ORDERS: dict[str, tuple[tuple[str, bool], ...]] = {
    "one after the other": (("0", False), ("1", False)),
    "the other way round": (("1", False), ("0", False)),
    "twice": (("0", False), ("0", False)),
    "kept": (("0", True), ("0", False), ("1", False)),
    "kept, then both": (("0", True), ("01", False)),
    "one, then both": (("0", False), ("01", False)),
    "both, then one": (("01", False), ("1", False)),
    "one, and the last kept": (("0", False), ("1", True), ("1", False), ("1", False)),
    "all": (("0", False), ("1", False), ("2", False), ("1", False)),
}


def history(
    program: Program, order: tuple[tuple[str, bool], ...]
) -> tuple[list[str | None], list[torch.Tensor | None]]:
    """What each backward raises, and the gradients where none does (one that raises may have left some)."""
    x, w = (torch.linspace(low, 1, 3).requires_grad_() for low in (0.25, 0.5))
    outputs = program(x, w)
    raised: list[str | None] = []
    for which, keep in order:
        chosen = [outputs[int(number)].sum() for number in which if int(number) < len(outputs)]
        if not chosen:
            continue
        try:
            torch.stack(chosen).sum().backward(retain_graph=keep)
            raised.append(None)
        except RuntimeError as error:
            raised.append(str(error))
    return raised, [] if any(raised) else [x.grad, w.grad]


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_order_of_backwards(name: str, dynamic: bool) -> None:
    compiled = stagefold.compile(PROGRAMS[name], dynamic=dynamic)
    for order in ORDERS.values():
        (raised, gradients), (found, own) = (history(call, order) for call in (PROGRAMS[name], compiled))
        assert found == raised, order
        torch.testing.assert_close(own, gradients)


def test_nothing_is_held_when_the_outputs_are_gone() -> None:
    """What is kept for a backward that never comes goes with the outputs."""
    gone = []

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    call = stagefold.compile(lambda x, w: (x.exp(), w.sigmoid()))
    x, w = (torch.ones(3, requires_grad=True) for _ in range(2))
    outputs = call(Noted.apply(x), Noted.apply(w))
    weakref.finalize(outputs[0].grad_fn, gone.append, True)
    outputs[0].sum().backward()
    del outputs
    gc.collect()
    assert gone


def test_what_was_written_since_is_refused() -> None:
    call = stagefold.compile(lambda x, w: (x * w, w.exp()))
    x, w = (torch.ones(3, requires_grad=True) for _ in range(2))
    first, second = call(x, w)
    second.sum().backward()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.sum().backward()


def test_gradients_of_gradients_of_each() -> None:
    found = []
    program = PROGRAMS["an input that both save"]
    for call in (program, stagefold.compile(program)):
        x, w = (torch.linspace(low, 1, 3).requires_grad_() for low in (0.25, 0.5))
        first, second = call(x, w)
        second.sum().backward()
        (grad,) = torch.autograd.grad(first.square().sum(), w, create_graph=True)
        grad.sum().backward()
        found.append((x.grad, w.grad))
    torch.testing.assert_close(found[1], found[0])
