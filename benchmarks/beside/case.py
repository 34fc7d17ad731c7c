"""What is measured: a program on its tensors, and the three engines that run it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Call = Callable[..., Any]


@dataclass(frozen=True)
class Program:
    """A function or module, its arguments, and whether a step goes backward.

    `leaves` are the tensors that get gradients; `autocast` computes in bfloat16 where torch's autocast does.
    """

    call: Call
    args: tuple[Any, ...]
    backward: bool = False
    leaves: tuple[torch.Tensor, ...] = ()
    autocast: bool = False
    _tangents: list[torch.Tensor] = field(default_factory=list)

    def step(self, call: Call) -> torch.Tensor:
        """Run once, under any engine; the first tensor of the result."""
        if not self.backward:
            with torch.no_grad():
                return first_tensor(self._run(call))
        for leaf in self.leaves:
            leaf.grad = None
        result = first_tensor(self._run(call))
        result.backward(self._tangent(result) if result.dim() else None)
        return result.detach()

    def _tangent(self, result: torch.Tensor) -> torch.Tensor:
        """A gradient for the result, made once: one that varies, else the gradients of normalisations vanish."""
        if not self._tangents:
            self._tangents.append(torch.linspace(-1, 1, result.numel()).reshape(result.shape).to(result.dtype))
        return self._tangents[0]

    def _run(self, call: Call) -> Any:
        if not self.autocast:
            return call(*self.args)
        with torch.autocast("cpu", torch.bfloat16):
            return call(*self.args)


@dataclass(frozen=True)
class Case:
    """A named program. `exact` is false where random numbers differ between engines (dropout)."""

    name: str
    build: Callable[[], Program]
    exact: bool = True


def first_tensor(result: Any) -> torch.Tensor:
    """The first tensor in a result of tensors, tuples and the dictionaries of transformers."""
    while not isinstance(result, torch.Tensor):
        result = next(iter(result.values())) if hasattr(result, "values") else result[0]
    return result


def pattern(call: Call, *shapes: Sequence[int], backward: bool = False) -> Callable[[], Program]:
    """A function of random float32 tensors."""

    def build() -> Program:
        args = tuple(torch.randn(shape, requires_grad=backward) for shape in shapes)
        return Program(call, args, backward, args if backward else ())

    return build


def network(module: nn.Module, *args: Any, backward: bool = False, autocast: bool = False) -> Program:
    """A module on its inputs: training mode with gradients of the parameters, or evaluation."""
    module.train(backward)
    return Program(module, args, backward, tuple(module.parameters()) if backward else (), autocast)


def stagefold_engine(call: Call) -> Call:
    import stagefold

    return stagefold.compile(call)


def torch_engine(call: Call) -> Call:
    return torch.compile(call, dynamic=False)


ENGINES: dict[str, Callable[[Call], Call]] = {
    "eager": lambda call: copy.copy(call) if isinstance(call, nn.Module) else call,
    "torch.compile": torch_engine,
    "stagefold": stagefold_engine,
}
