"""Hypothesis strategies: drawn programs on inputs that share memory, which write, look and compute.

    drawn  ::= (program, make)              make() -> inputs, leaves
    inputs ::= look(base)+ other?           the same object twice, overlapping slices, x and x.t(), x and x.detach() ...

A program is a list of steps that eager has carried out once; run again on fresh inputs it does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

from aotgrad.testing.effect_programs import Effect
from aotgrad.testing.strategies import PURE, VIEWS, WRITES

Look = Callable[[torch.Tensor], torch.Tensor]
Step = tuple[Callable[..., Any], tuple[int, ...], bool]

# Ways to look at a base of 4 x 4 elements.
_LOOKS: tuple[Look, ...] = (
    lambda x: x,
    lambda x: x,
    lambda x: x.view_as(x),
    lambda x: x.detach(),
    lambda x: x.data,
    lambda x: x.t(),
    lambda x: x[1:],
    lambda x: x[:3],
    lambda x: x[:2],
    lambda x: x[2:],
    lambda x: x[0],
    lambda x: x[:, ::2],
    lambda x: x[:, 1::2],
    lambda x: x.view(-1),
    lambda x: x.view(2, 8),
    lambda x: x[0].expand(4, 4),
    lambda x: x.as_strided((3, 2), (1, 1)),
    lambda x: x[:, :0],
    lambda x: x.diagonal(),
)
_KINDS = ("closed", "closed", "leaf", "hidden", "hidden")


def _base(kind: str, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor of the kind, and the leaf behind it."""
    generator = torch.Generator().manual_seed(number)
    leaf = (torch.rand(4, 4, generator=generator) + 0.5).requires_grad_(kind != "closed")
    return (leaf * 1 if kind == "hidden" else leaf), leaf


@st.composite
def aliased_programs(draw: st.DrawFn, max_steps: int = 6) -> Effect:
    """A program and what makes its inputs."""
    kind = draw(st.sampled_from(_KINDS))
    places = draw(st.lists(st.integers(0, len(_LOOKS) - 1), min_size=2, max_size=3))
    other = draw(st.sampled_from((None, *_KINDS)))

    def make() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        base, leaf = _base(kind, 0)
        inputs, leaves = [_LOOKS[place](base) for place in places], [leaf]
        if other is not None:
            second, second_leaf = _base(other, 1)
            inputs.append(second)
            leaves.append(second_leaf)
        return inputs, [each for each in leaves if each.requires_grad]

    steps, results = _draw_steps(draw, make()[0], max_steps)

    def program(*inputs: torch.Tensor) -> list[torch.Tensor]:
        pool = list(inputs)
        for function, operands, counted in steps:
            given = [pool[number] for number in operands]
            if counted:
                pool.append(function(*given))
                continue
            with torch.no_grad():
                pool.append(function(*given))
        return [pool[number] for number in results]

    return program, make


def _draw_steps(
    draw: st.DrawFn, pool: list[torch.Tensor], max_steps: int
) -> tuple[tuple[Step, ...], tuple[int, ...]]:  # fmt: skip
    """Steps that eager takes, and which tensors are returned."""
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, max_steps))):
        arity, functions = draw(st.sampled_from(_FAMILIES))
        function = draw(st.sampled_from(functions))
        operands = tuple(draw(st.integers(0, len(pool) - 1)) for _ in range(arity))
        counted = draw(st.booleans())
        try:
            with torch.set_grad_enabled(counted):
                made = function(*(pool[number] for number in operands))
        except (RuntimeError, IndexError):
            continue  # eager refuses it
        if made.numel() <= 1000:
            pool.append(made)
            steps.append((function, operands, counted))
    return tuple(steps), tuple(draw(st.lists(st.integers(0, len(pool) - 1), min_size=1, max_size=3)))


def _write(function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """The write as a function of the target that returns it."""

    def write(target: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        function(target, other)
        return target

    return write


_WRITING = tuple(_write(function) for function in WRITES)
_FAMILIES: tuple[tuple[int, tuple[Callable[..., torch.Tensor], ...]], ...] = (
    (1, PURE[0]), (2, PURE[1]), (1, VIEWS), (1, VIEWS), (2, _WRITING), (2, _WRITING), (2, _WRITING),
)  # fmt: skip
