"""The reference meaning of `Grad`: cut between ATen calls, both parts run node by node with eager ATen.

The stages are imported where they run: what only binds compiled halves loads no tracer.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from aotgrad.bind import bind
from aotgrad.errors import ReplayFailed
from aotgrad.executor import executor
from aotgrad.higher_order import Program
from stagewire.capture import Capture
from stagewire.grad import Grad
from stagewire.prim import Prim

if TYPE_CHECKING:
    from aotgrad.stage import Options


def interpret(document: Grad | Prim, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The outputs of the program on the caller's tensors, which are mutated as the program says.

    In grad mode the outputs have a history: their backward runs the backward graph.
    """
    return bind_interpreted(document)(*inputs)


def bind_interpreted(
    document: Grad | Prim,
    gradient: Callable[[], Program] | None = None,
    plain: Callable[..., tuple[Any, ...]] | None = None,
) -> Callable[..., tuple[Any, ...]]:
    """The program as a callable over its inputs, each part run by `executor`; `gradient` and `plain` as for `bind`.

    A document that is not cut yet is cut as by default. Prims are not known here (`primops.interpret`).
    """
    from aotgrad.partition.stage import cut

    if document.joint is not None:
        document = cut(document)
    assert isinstance(document, Prim)
    assert document.forward is not None
    backward = None if document.backward is None else executor(document.backward)
    forward = executor(document.forward)
    return bind(document.binding, forward, backward, gradient=gradient, plain=plain, takes_list=True)


def run_plain(capture: Capture, *inputs: torch.Tensor) -> tuple[Any, ...]:
    """What the captured program does, by eager torch: its calls, one after the other. Raises what they raise."""
    from aotgrad.tracer.replay import replay

    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            return replay(capture, inputs, lambda node: None)
    except ReplayFailed as error:
        raise (error.__cause__ or error) from None


def bind_capture(capture: Capture, options: Options | None = None) -> Callable[..., tuple[Any, ...]]:
    """The program of a capture, which can be differentiated to any order, each graph run by `executor`."""
    from aotgrad.stage import Options

    return _bind_order(capture, Options() if options is None else options)[0]


def _bind_order(capture: Capture, options: Options) -> Program:
    from aotgrad.partition.stage import cut
    from aotgrad.stage import AotGrad

    following = dataclasses.replace(options, gradient_order=options.gradient_order + 1)
    document = cut(AotGrad().run(capture, options))
    plain = functools.partial(run_plain, capture) if options.gradient_order == 0 else None
    call = bind_interpreted(document, lambda: _bind_order(capture, following), plain)
    used = tuple(given.used for given in document.binding.inputs)
    return call, used, any(function.once for function in capture.functions)
