"""The gradient of a gradient: under create_graph=True a backward runs the gradient's own program, which has a backward.

    gradients ::= program(*inputs, *tangents)          a bound program of the next order, made when it is first needed

It starts from the inputs of the call. Those that the first backward needs anyway autograd has kept; the others on whose
values the gradients depend are kept beside them; an input of which only the type matters is stood in for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from absint.executor import Executor
from aotgrad.errors import BackwardFailed, DoubleBackward
from stagewire.expr import evaluate
from stagewire.grad import Binding, SavedInput
from stagewire.types import ScalarType, TensorType

Program = tuple[Callable[..., tuple[Any, ...]], tuple[bool, ...], bool]
"""A bound program, which of its inputs it reads, and whether a custom function of it is marked with
`once_differentiable`: then nothing may be differentiated through its tangents."""
Gradients = Callable[[Any, tuple[Any, ...], tuple[torch.Tensor, ...]], Sequence[Any]]


ONCE = "trying to differentiate twice a function that was marked with @once_differentiable"
"""What torch says."""


def kept_inputs(binding: Binding) -> tuple[int, ...]:
    """The inputs to keep for a gradient of a gradient: not saved, and gradients depend on their values.

    Behind them those that autograd did not see being overwritten: they are what the new content is differentiated for.
    """
    saved = {slot.input for slot in binding.saved if isinstance(slot, SavedInput)}
    return tuple(number for number in binding.gradient_inputs if number not in saved) + _overwritten(binding)


def _overwritten(binding: Binding) -> tuple[int, ...]:
    hidden = [mutation.input for mutation in binding.mutations if not mutation.under_grad]
    return tuple(number for number in hidden if binding.inputs[number].requires_grad)


def versions_of(inputs: tuple[torch.Tensor, ...]) -> list[int | None]:
    """How often each input was written, where that is counted."""
    return [None if tensor.is_inference() else tensor._version for tensor in inputs]


def random_states(devices: tuple[str, ...]) -> Callable[[], list[torch.Tensor]]:
    """Reads where the random stream of each device stands."""
    generators = [_generator(device) for device in devices]
    return lambda: [generator().get_state() for generator in generators]


def _generator(device: str) -> Callable[[], torch.Generator]:
    place = torch.device(device)
    if place.type == "cpu":
        return lambda: torch.default_generator
    return lambda: torch.cuda.default_generators[place.index or 0]


@contextmanager
def _random_streams_at(devices: tuple[str, ...], states: list[torch.Tensor]) -> Iterator[None]:
    generators = [_generator(device)() for device in devices]
    before = [generator.get_state() for generator in generators]
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def differentiable_gradients(binding: Binding, gradient: Callable[[], Program] | None, backward: Executor) -> Gradients:
    """Computes gradients that autograd can differentiate.

    Where the gradient has no gradient of its own, the result cannot be differentiated, and says so when that is tried.
    """
    if gradient is None:
        return _refuse
    inputs = _input_reader(binding)
    devices = binding.gradient_devices
    wanted = [number for number, position in enumerate(binding.input_gradients) if position is not None]

    def gradients(ctx: Any, saved: tuple[Any, ...], tangents: tuple[torch.Tensor, ...]) -> Sequence[Any]:
        try:
            program, reads, is_once = gradient()
            if is_once and any(tangent.requires_grad for tangent in tangents):
                raise BackwardFailed(ONCE)
        except BackwardFailed as error:
            found = backward(*saved, *tangents)
            return _Undifferentiable.apply(error, found, *saved, *tangents)
        given = inputs(ctx, saved, reads)
        if not devices:
            found = program(*given, *tangents)
        elif ctx.random is None:
            raise BackwardFailed("trying to backward through the graph a second time")
        else:
            with _random_streams_at(devices, ctx.random):
                found = program(*given, *tangents)
        return [found[number] for number in wanted]

    return gradients


def _refuse(ctx: Any, saved: tuple[Any, ...], tangents: tuple[torch.Tensor, ...]) -> Sequence[Any]:
    raise DoubleBackward("the gradient of a compiled gradient (create_graph=True)")


def _input_reader(binding: Binding) -> Callable[[Any, tuple[Any, ...], tuple[bool, ...]], list[torch.Tensor]]:
    """Finds the inputs of the call again."""
    kept = {number: at for at, number in enumerate(kept_inputs(binding))}
    among = {slot.input: at for at, slot in enumerate(binding.saved) if isinstance(slot, SavedInput)}

    def read(ctx: Any, saved: tuple[Any, ...], reads: tuple[bool, ...]) -> list[torch.Tensor]:
        if kept:
            _check_unchanged(ctx, binding)
        found = []
        for number, given in enumerate(binding.inputs):
            if isinstance(given.type, ScalarType):
                found.append(ctx.sizes[given.name])
            elif number in among:
                found.append(saved[among[number]])
            elif number in kept:
                found.append(ctx.inputs[kept[number]])
            elif reads[number]:
                raise DoubleBackward(f"the gradient's gradient depends on the input {given.name}, which was not kept")
            else:
                found.append(room_for(given.type, ctx.sizes))  # nobody reads its elements
        return found

    return read


def _check_unchanged(ctx: Any, binding: Binding) -> None:
    if ctx.inputs is None:
        raise BackwardFailed("trying to backward through the graph a second time")
    overwritten = _overwritten(binding)
    for number, before, now in zip(kept_inputs(binding), ctx.versions, versions_of(ctx.inputs), strict=True):
        if before != now and number not in overwritten:
            raise BackwardFailed(f"the input {binding.inputs[number].name} was modified in place after the forward")


def room_for(kind: TensorType, sizes: dict[str, int] | None) -> torch.Tensor:
    """A tensor of that type, of whatever elements; `sizes` are the values of the symbols, if there are any."""
    shape, stride = ([evaluate(dim, sizes or {}) for dim in dims] for dims in (kind.shape, kind.stride))
    return torch.empty_strided(shape, stride, dtype=getattr(torch, kind.dtype), device=kind.device)


class _Undifferentiable(torch.autograd.Function):
    """Gradients that autograd takes for differentiable, and that are not: it raises when they are differentiated."""

    @staticmethod
    def forward(ctx: Any, error: BackwardFailed, found: Sequence[torch.Tensor], *sources: torch.Tensor) -> Any:
        ctx.error = error
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise BackwardFailed(ctx.error.message, where=ctx.error.where)
