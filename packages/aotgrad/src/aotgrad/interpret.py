"""The reference meaning of `Grad`: its graphs run node by node with eager ATen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aotgrad.bind import bind
from aotgrad.executor import executor
from stagewire.grad import Grad

__all__ = ["bind_interpreted", "interpret"]


def interpret(grad: Grad, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The outputs of the program on the caller's tensors, which are mutated as the program says.

    In grad mode the outputs have a history: their backward runs the backward graph.
    """
    return bind_interpreted(grad)(*inputs)


def bind_interpreted(grad: Grad) -> Callable[..., tuple[Any, ...]]:
    """The program as a callable over its inputs, each graph run by `executor`."""
    return bind(grad.binding, executor(grad.forward), None if grad.backward is None else executor(grad.backward))
