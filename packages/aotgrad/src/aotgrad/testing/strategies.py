"""Hypothesis strategies: captures of drawn torch programs with views, writes, reductions and products.

    program ::= input+ step* output+
    step    ::= pointwise | binary | view | write | reduction | product | join | choice | cast | dropout

A program is drawn while it runs for real: a step that eager refuses is left out, so that every capture is a program
that eager runs forward. (Its backward may still be one that eager refuses, as after a write over a saved tensor.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

from aotgrad.testing.conformance import copy_of
from aotgrad.testing.torch_function import capture_by_torch_function
from stagewire.capture import Capture

Step = Callable[[st.DrawFn, list[torch.Tensor]], torch.Tensor | None]

_SHAPES = ((3, 4), (4,), (1, 4), (3, 1), (), (0, 4), (2, 3, 4), (4, 4))
_UNARY = (torch.sin, torch.exp, torch.tanh, torch.relu, torch.neg, torch.abs, torch.sigmoid, torch.square, torch.clone)
_BINARY = (torch.add, torch.mul, torch.sub, torch.maximum)
PURE: tuple[tuple[Callable[..., torch.Tensor], ...], ...] = (_UNARY, _BINARY)
"""Functions of one tensor, and of two."""
_REDUCE = (torch.sum, torch.mean, torch.amax, torch.logsumexp)
WRITES: tuple[Callable[[torch.Tensor, torch.Tensor], Any], ...] = (
    lambda target, other: target.add_(other),
    lambda target, other: target.mul_(2),
    lambda target, other: target.copy_(other),
    lambda target, other: target.fill_(0.5),
    lambda target, other: target.zero_(),
    lambda target, other: target.sub_(1, alpha=2),
    lambda target, other: target.sigmoid_(),
    lambda target, other: target.__setitem__(0, 1.5),
    lambda target, other: target.__setitem__((..., slice(0, 1)), other),
    lambda target, other: target.masked_fill_(target > 1, 0.25),
    lambda target, other: target.index_put_((torch.tensor([0, 0]),), other, accumulate=True),
    lambda target, other: target.relu_(),
    lambda target, other: target.unsqueeze(0).clamp_(max=1),
    lambda target, other: target.div_(other.abs() + 1),
    lambda target, other: torch.add(target, 1, out=target),
    lambda target, other: target.view(-1)[1:].add_(1),
)
VIEWS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x.t(),
    lambda x: x.transpose(0, -1),
    lambda x: x.reshape(-1),
    lambda x: x.unsqueeze(0),
    lambda x: x.squeeze(),
    lambda x: x[0],
    lambda x: x[1:],
    lambda x: x[..., ::2],
    lambda x: x.expand(2, *x.shape),
    lambda x: x.flatten(),
    lambda x: x.unbind(0)[-1],
    lambda x: x.chunk(2, -1)[0],
    lambda x: x.diagonal(),
    lambda x: x.movedim(0, -1),
    lambda x: x.detach(),
    lambda x: x.view_as(x),
    lambda x: x.as_strided((2,), (1,)),
    lambda x: x.contiguous(),
    lambda x: x.narrow(0, 0, 1),
    lambda x: x.split(1)[0],
    lambda x: x.swapaxes(0, -1),
    lambda x: x.view(-1, 2),
)


def _one(draw: st.DrawFn, pool: list[torch.Tensor]) -> torch.Tensor:
    return pool[draw(st.integers(0, len(pool) - 1))]


def _pointwise(draw: st.DrawFn, pool: list[torch.Tensor]) -> torch.Tensor:
    return draw(st.sampled_from(_UNARY))(_one(draw, pool))


def _binary(draw: st.DrawFn, pool: list[torch.Tensor]) -> torch.Tensor:
    return draw(st.sampled_from(_BINARY))(_one(draw, pool), _one(draw, pool))


def _view(draw: st.DrawFn, pool: list[torch.Tensor]) -> torch.Tensor:
    return draw(st.sampled_from(VIEWS))(_one(draw, pool))


def _write(draw: st.DrawFn, pool: list[torch.Tensor]) -> None:
    write, target, other = draw(st.sampled_from(WRITES)), _one(draw, pool), _one(draw, pool)
    if draw(st.booleans()):
        write(target, other)
        return
    torch._C._set_grad_enabled(False)
    try:
        write(target, other)
    finally:
        torch._C._set_grad_enabled(True)


def _reduction(draw: st.DrawFn, pool: list[torch.Tensor]) -> torch.Tensor:
    x = _one(draw, pool)
    return draw(st.sampled_from(_REDUCE))(x, dim=draw(st.sampled_from((0, -1))), keepdim=draw(st.booleans()))


def _product(draw: st.DrawFn, pool: list[torch.Tensor]) -> torch.Tensor:
    return torch.matmul(_one(draw, pool), _one(draw, pool))


def _join(draw: st.DrawFn, pool: list[torch.Tensor]) -> torch.Tensor:
    return draw(st.sampled_from((torch.cat, torch.stack)))([_one(draw, pool), _one(draw, pool)])


def _choice(draw: st.DrawFn, pool: list[torch.Tensor]) -> torch.Tensor:
    first, second = _one(draw, pool), _one(draw, pool)
    return torch.where(first > second, first, second * 2)


def _cast(draw: st.DrawFn, pool: list[torch.Tensor]) -> torch.Tensor:
    return _one(draw, pool).to(draw(st.sampled_from((torch.float64, torch.float32, torch.bfloat16))))


def _dropout(draw: st.DrawFn, pool: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.dropout(_one(draw, pool), draw(st.sampled_from((0.0, 0.3, 1.0))))


_STEPS: tuple[Step, ...] = (
    _pointwise, _binary, _view, _view, _view, _write, _write, _write, _reduction, _product, _dropout, _join, _choice,
    _cast,
)  # fmt: skip


@st.composite
def _inputs(draw: st.DrawFn) -> list[torch.Tensor]:
    found = []
    for shape in draw(st.lists(st.sampled_from(_SHAPES), min_size=1, max_size=3)):
        generator = torch.Generator().manual_seed(len(found))
        x = torch.rand(shape, generator=generator) + 0.5
        layout = draw(st.sampled_from(("plain", "plain", "turned", "offset")))
        if layout == "turned":
            turned = tuple(reversed(range(x.ndim)))
            x = x.permute(turned).contiguous().permute(turned)
        elif layout == "offset":
            x = torch.cat([x.unsqueeze(0), x.unsqueeze(0)])[1]
        kind = draw(st.sampled_from(("leaf", "hidden", "hidden", "closed")))
        x = x.requires_grad_(kind != "closed")
        found.append(x * 1 if kind == "hidden" else x)
    return found


@st.composite
def programs(draw: st.DrawFn, max_steps: int = 8) -> tuple[Capture, list[torch.Tensor]]:
    """A capture and fresh inputs for it."""
    given = draw(_inputs())
    kept = [copy_of(t) for t in given]

    def program(*inputs: torch.Tensor) -> list[torch.Tensor]:
        pool = list(inputs)
        for _ in range(draw(st.integers(1, max_steps))):
            step = draw(st.sampled_from(_STEPS))
            try:
                made = step(draw, pool)
            except (RuntimeError, IndexError):
                continue  # eager refuses it
            if made is not None and made.numel() <= 1000:
                pool.append(made)
        return [_one(draw, pool) for _ in range(draw(st.integers(1, 3)))]

    capture, inputs = capture_by_torch_function(program, given)
    assert len(inputs) == len(given), "a program reached a tensor that it was not given"
    return capture, [k if t.is_leaf else k * 1 for k, t in zip(kept, given, strict=True)]


def captures(max_steps: int = 8) -> st.SearchStrategy[Capture]:
    """The captures of `programs`."""
    return programs(max_steps).map(lambda drawn: drawn[0])
