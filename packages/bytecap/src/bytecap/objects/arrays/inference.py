"""torch.inference_mode in captured code: the whole graph runs in it, or none.

region ::= enter operations leave           nothing is computed in front of it or behind it
graph  ::= inference mode { operations }    its results are inference tensors, as in plain code

An operation outside of the region ends the graph; so does a region that does not start at the graph's start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bytecap.context_types import Emitter, Tracer
from bytecap.errors import CannotRebuild, UnsupportedCall, UnsupportedMutation
from bytecap.hook import plain
from bytecap.objects.base import Value
from bytecap.objects.constant import Constant
from bytecap.objects.functions import BuiltinMethod
from bytecap.torch_capabilities import TORCH


class InferenceContext(Value):
    """A `torch._C._InferenceMode(enabled)`: the guard that `with torch.inference_mode():` enters and leaves."""

    __slots__ = ("enabled", "grad_before", "is_region")

    def __init__(self, enabled: bool) -> None:
        super().__init__()
        self.enabled = enabled
        self.grad_before: bool | None = None
        self.is_region = False

    def python_type(self) -> type:
        return TORCH.inference_mode

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name not in ("__enter__", "__exit__"):
            raise UnsupportedCall(f"attribute {name!r} of torch._C._InferenceMode")
        return BuiltinMethod(self, name)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        self._enter(tracer) if name == "__enter__" else self._leave(tracer)
        return Constant(None)

    def _enter(self, tracer: Tracer) -> None:
        if self.enabled != is_inferring(tracer):
            graph = tracer.graph
            if not self.enabled or graph.has_work or graph.is_body or graph.inference is not None:
                raise UnsupportedCall(f"torch.inference_mode({self.enabled}) in the middle of a graph")
            self.is_region, graph.inference = True, "entered"
        self.grad_before = torch.is_grad_enabled()
        _set_grad(tracer, not self.enabled)

    def _leave(self, tracer: Tracer) -> None:
        assert self.grad_before is not None
        _set_grad(tracer, self.grad_before)
        self.grad_before = None
        if self.is_region:
            tracer.graphs[0].inference = "left"
            tracer.graph.is_closed = True

    def reconstruct(self, emitter: Emitter) -> None:
        if self.grad_before is not None:
            raise CannotRebuild("torch.inference_mode that is entered")
        emitter.call_function(_left, self.enabled)


def _left(enabled: bool) -> Any:
    """A guard that was left; making one enters the mode."""
    guard = TORCH.inference_mode(enabled)
    guard.__exit__(None, None, None)
    return guard


def is_inferring(tracer: Tracer) -> bool:
    """Whether the captured code is in inference mode here."""
    return tracer.graphs[0].inference == "entered" or torch.is_inference_mode_enabled()


def refuse_writes(tracer: Tracer, before: int) -> None:
    """End the graph where the writes after the first `before` change an inference tensor outside of inference mode: the
    plain code raises there. (Whether an input is one, is guarded by its dispatch keys.)"""
    if len(tracer.mode.written) == before or is_inferring(tracer):
        return
    memories = {id(memory) for memory in tracer.mode.written[before:]}
    for known in tracer.inputs.tensors.values():
        if known.real is not None and known.real.is_inference() and id(known.abstract.storage_record) in memories:
            raise UnsupportedMutation("an inference tensor is written outside of inference mode")


def refuse_open_inference(tracer: Tracer) -> None:
    """The capture ends: inference mode was left."""
    if tracer.graphs[0].inference == "entered":
        raise CannotRebuild("torch.inference_mode that is entered")


def in_inference_mode(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled graph, called in inference mode."""

    def call(*tensors: torch.Tensor) -> Any:
        with torch.inference_mode():
            return compiled(*tensors)

    return plain(call)


def _set_grad(tracer: Tracer, enabled: bool) -> None:
    tracer.objects.wrap(TORCH.set_grad_enabled, None).call(tracer, [Constant(enabled)], {})


def _context(tracer: Tracer, enabled: Value = Constant(True)) -> Value:  # noqa: B008
    return InferenceContext(bool(enabled.concrete()))


INFERENCE: dict[Any, Callable[..., Value]] = {
    TORCH.inference_mode: _context,
    torch.is_inference_mode_enabled: lambda tracer: Constant(is_inferring(tracer)),
}
