"""torch.inference_mode in captured code: its calls are captured without gradients.

An inference tensor is one whose memory was made inside; views of other memory are none. Those that leave the graph are
made inference tensors behind it. What torch may refuse of them outside of the mode ends the graph: writes, and
operations whose results require grad.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from absint import AbstractTensor
from bytecap.context_types import Emitter, Tracer
from bytecap.errors import CannotRebuild, UnsupportedCall, UnsupportedMutation
from bytecap.hook import plain
from bytecap.objects.base import NONE, Constant, Value, state
from bytecap.torch_capabilities import TORCH


class InferenceContext(Value):
    """A `torch._C._InferenceMode(enabled)`: the guard that `with torch.inference_mode():` enters and leaves."""

    enabled: bool
    grad_before: bool | None = state(default=None)
    was_on: bool = state(default=False)
    cls = TORCH.inference_mode
    methods: ClassVar = {
        "__enter__": lambda tracer, self: self._enter(tracer) or NONE,
        "__exit__": lambda tracer, self, *raised: self._leave(tracer) or NONE,
    }

    def _enter(self, tracer: Tracer) -> None:
        inference, is_outside = tracer.graph.inference, torch.is_inference_mode_enabled()
        if self.enabled != is_inferring(tracer) and (tracer.graph.is_body or is_outside):
            raise UnsupportedCall(f"torch.inference_mode({self.enabled}) in a function of the graph, or in the mode")
        self.grad_before, self.was_on, inference.is_on = torch.is_grad_enabled(), inference.is_on, False
        _set_grad(tracer, not self.enabled)
        inference.is_on = self.enabled and not is_outside

    def _leave(self, tracer: Tracer) -> None:
        tracer.graph.inference.is_on = False
        _set_grad(tracer, self.grad_before)
        tracer.graph.inference.is_on, self.grad_before = self.was_on, None

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
    return tracer.graph.inference.is_on or torch.is_inference_mode_enabled()


def note_memory(tracer: Tracer, value: Any) -> None:
    """A new result of the graph: is it an inference tensor?"""
    inference, memory = tracer.graph.inference, value.abstract.storage_record
    if memory.is_inference is None:
        memory.is_inference = is_inferring(tracer)
        if inference.is_on:
            inference.memories[id(memory)] = memory
    if id(memory) in inference.memories:
        inference.names.add(value.name)


def refuse_writes(tracer: Tracer, before: int) -> None:
    """End the graph where the writes after the first `before` change an inference tensor outside of inference mode: the
    plain code raises there. (Whether an input is one, is guarded by its dispatch keys.)"""
    if not is_inferring(tracer) and any(memory.is_inference for memory in tracer.mode.written[before:]):
        raise UnsupportedMutation("an inference tensor is written outside of inference mode")


def with_inference_results(compiled: Callable[..., Any], places: frozenset[int]) -> Callable[..., Any]:
    """The compiled graph; its results at these places are inference tensors."""

    def call(*tensors: torch.Tensor) -> Any:
        results = compiled(*tensors)
        if results is None:
            return None
        with TORCH.inference_mode(True):
            return tuple([_as_inference(result) if at in places else result for at, result in enumerate(results)])

    return plain(call)


def _as_inference(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_inference():
        return tensor
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor)  # type: ignore[call-overload]


def _set_grad(tracer: Tracer, enabled: bool) -> None:
    tracer.objects.wrap(TORCH.set_grad_enabled, None).call(tracer, [Constant(enabled)], {})


def _is_inference(tracer: Tracer, tensor: Value) -> Value:
    abstract = getattr(tensor, "abstract", None)
    if not isinstance(abstract, AbstractTensor):
        raise UnsupportedCall(f"Tensor.is_inference() of a {tensor.describe()}")
    return Constant(abstract.storage_record.is_inference)


INFERENCE: dict[Any, Callable[..., Value]] = {
    TORCH.inference_mode: lambda tracer, enabled=None: InferenceContext(enabled is None or bool(enabled.concrete())),
    torch.is_inference_mode_enabled: lambda tracer: Constant(is_inferring(tracer)),
    torch.is_inference: _is_inference,
    torch.Tensor.is_inference: _is_inference,
}
