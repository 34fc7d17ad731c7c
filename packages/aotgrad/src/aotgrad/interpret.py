"""The reference meaning of `Grad`: its graphs run node by node with eager ATen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aotgrad.bind import bind
from aotgrad.executor import executor
from aotgrad.higher_order import Program
from aotgrad.stage import AotGrad, Options
from stagewire.capture import Capture
from stagewire.grad import Grad

__all__ = ["bind_capture", "bind_interpreted", "interpret"]


def interpret(grad: Grad, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The outputs of the program on the caller's tensors, which are mutated as the program says.

    In grad mode the outputs have a history: their backward runs the backward graph.
    """
    return bind_interpreted(grad)(*inputs)


def bind_interpreted(grad: Grad, gradient: Callable[[], Program] | None = None) -> Callable[..., tuple[Any, ...]]:
    """The program as a callable over its inputs, each graph run by `executor`; `gradient` as for `bind`."""
    backward = None if grad.backward is None else executor(grad.backward)
    return bind(grad.binding, executor(grad.forward), backward, gradient=gradient)


def bind_capture(capture: Capture, options: Options | None = None) -> Callable[..., tuple[Any, ...]]:
    """The program of a capture, which can be differentiated to any order, each graph run by `executor`."""
    return _bind_order(capture, Options() if options is None else options)[0]


def _bind_order(capture: Capture, options: Options) -> Program:
    following = dataclasses.replace(options, gradient_order=options.gradient_order + 1)
    grad = AotGrad().run(capture, options)
    call = bind_interpreted(grad, lambda: _bind_order(capture, following))
    return call, tuple(given.used for given in grad.binding.inputs)
