"""The autograd function round the two halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aotgrad.errors import DoubleBackward
from stagewire.grad import Binding, Fresh, SavedInput, Tangent, ViewOf
from stagewire.types import TensorType

__all__ = ["make_function"]

Executor = Callable[..., Any]


def make_function(
    binding: Binding,
    forward: Executor,
    backward: Executor,
    joint: Executor | None,
    constants: tuple[torch.Tensor, ...],
) -> Executor:
    """A callable over the inputs that returns the visible results, with the backward as their history."""
    visible = _visible_results(binding)
    differentiable = {tangent.result for tangent in binding.tangents}
    closed = tuple(number for number in range(visible) if number not in differentiable)
    slots = tuple((type(s) is SavedInput, s.input if type(s) is SavedInput else s.result) for s in binding.saved)
    starts = tuple((tangent.result, _tangent_reader(tangent)) for tangent in binding.tangents)
    order = binding.input_gradients
    second = None if joint is None else _second_order(binding, joint, constants, len(slots))

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            given = (*inputs, *constants) if constants else inputs
            results = forward(*given)
            saved = [given[number] if of_input else results[number] for of_input, number in slots]
            if second is not None:
                saved += inputs
            ctx.save_for_backward(*saved)
            ctx.set_materialize_grads(False)
            if closed:
                ctx.mark_non_differentiable(*[results[number] for number in closed])
            return tuple(results[:visible])

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            tangents = [read(grads[number]) for number, read in starts]
            saved = ctx.saved_tensors
            if torch.is_grad_enabled():
                if second is None:
                    raise DoubleBackward("the gradient of a compiled gradient (create_graph=True)")
                found = second(saved, tangents)
            elif second is None:
                found = backward(*saved, *tangents)
            else:
                found = backward(*saved[: len(slots)], *tangents)
            return tuple([None if number is None else found[number] for number in order])

    return Compiled.apply


def _visible_results(binding: Binding) -> int:
    """How many of the forward's first results outputs and mutations use."""
    used = [mutation.result for mutation in binding.mutations]
    for output in binding.outputs:
        if isinstance(output, Fresh):
            used.append(output.result)
        elif isinstance(output, ViewOf) and output.of == "result":
            used.append(output.base)
    return max(used, default=-1) + 1


def _tangent_reader(tangent: Tangent) -> Callable[[torch.Tensor | None], torch.Tensor]:
    """Makes what autograd hands over the tensor that the backward expects: zeros for none, the expected strides."""
    expected = tangent.type
    stride = tuple(expected.stride)

    def read(given: torch.Tensor | None) -> torch.Tensor:
        if given is None:
            return _zeros(expected)
        if given.stride() == stride:
            return given
        return _restride(given, stride)

    return read


def _zeros(kind: TensorType) -> torch.Tensor:
    dtype = getattr(torch, kind.dtype)
    return torch.empty_strided(kind.shape, kind.stride, dtype=dtype, device=kind.device).zero_()


def _restride(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The same elements in dense memory of these strides."""
    order = sorted(range(tensor.ndim), key=lambda d: (-stride[d], -tensor.shape[d], d))
    inverse = [order.index(d) for d in range(tensor.ndim)]
    return tensor.permute(order).contiguous().permute(inverse)


def _second_order(
    binding: Binding, joint: Executor, constants: tuple[torch.Tensor, ...], saved_count: int
) -> Callable[[tuple[Any, ...], list[torch.Tensor]], Any]:
    """Computes the gradients from the inputs on, so that autograd can differentiate them."""
    if binding.mutations:
        written = ", ".join(binding.inputs[m.input].name for m in binding.mutations)

        def refuse(saved: tuple[Any, ...], tangents: list[torch.Tensor]) -> Any:
            raise DoubleBackward(
                f"the gradient of a compiled gradient of a program that writes into {written}",
                fix="Write the update outside of the compiled region, or run this part without compilation.",
            )

        return refuse
    results = {s.result: at for at, s in enumerate(binding.saved) if type(s) is not SavedInput}
    extra = tuple(results[number] for number in binding.joint_saved)

    def gradients(saved: tuple[Any, ...], tangents: list[torch.Tensor]) -> Any:
        return joint(*saved[saved_count:], *constants, *[saved[at] for at in extra], *tangents)

    return gradients
