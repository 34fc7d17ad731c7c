"""A probe is a program and its inputs; its outcome is what becomes of it, compared with eager."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves, tree_map

Outcome = Literal["one graph", "with breaks", "refused", "differs", "none"]
Compile = Callable[[Callable[..., Any], bool], Callable[..., Any]]
"""From a program, and whether it has to be one graph, to what runs it."""

SIZES = (6, 9)
"""Every probe is called with inputs of both."""

TOLERANCE = {"rtol": 2e-2, "atol": 2e-2}
"""What is wrong is off by far more; how exact results are is for other tests."""


@dataclass(frozen=True)
class Probe:
    """make: called afresh for each run; gives the program (a function or a module) and `inputs(size)`.

    trains: gradients of the floating inputs, and of a module's parameters, are compared too.
    outcome: what this project makes of it. on_gpu: the same on a GPU, where it is another.
    """

    area: str
    name: str
    make: Callable[[], tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]]
    trains: bool
    outcome: Outcome
    on_gpu: Outcome | None = None


@dataclass
class Probes:
    """Those of one file: `@probes("name")` on what makes the program and its inputs, or on a program of one tensor."""

    area: str
    rows: list[Probe] = field(default_factory=list)

    def __call__(
        self, name: str, *, trains: bool = False, outcome: Outcome = "one graph", on_gpu: Outcome | None = None
    ) -> Callable[..., Any]:
        def add(program: Callable[..., Any]) -> Callable[..., Any]:
            def make() -> tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]:
                return program, lambda size: (matrix(size),)

            takes_inputs = program.__code__.co_argcount > 0
            self.rows.append(Probe(self.area, name, make if takes_inputs else program, trains, outcome, on_gpu))
            return program

        return add


def matrix(size: int, columns: int = 8) -> Tensor:
    """Equal numbers in every run: (size, columns), from -2 to 2."""
    return torch.linspace(-2, 2, size * columns).view(size, columns)[torch.arange(size).flip(0)].contiguous()


def outcome_of(probe: Probe, compile: Compile, device: str = "cpu") -> tuple[Outcome, str]:
    """What becomes of a probe, and what was said where it is not one graph.

    device: of its inputs and modules. "none": eager raises there.
    """
    with warnings.catch_warnings(), contextlib.ExitStack() as after:
        warnings.simplefilter("ignore")
        after.callback(_leave_processes)
        try:
            expected = _results(probe, lambda program: program, device)
        except Exception as error:
            if device == "cpu":
                raise
            return "none", f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        try:
            found = _results(probe, lambda program: compile(program, True), device)
        except Exception as error:
            said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        else:
            return ("one graph", "") if _same(found, expected) else ("differs", "as one graph")
        try:
            found = _results(probe, lambda program: compile(program, False), device)
        except Exception as error:
            return "refused", f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return ("with breaks", said) if _same(found, expected) else ("differs", "with breaks")


def _leave_processes() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _results(probe: Probe, compiled: Callable[[Any], Any], device: str) -> list[Any]:
    """What the program gives for inputs of each size, and leaves of its inputs; gradients where it trains."""
    torch.manual_seed(0)
    with torch.device(device):
        program, inputs = probe.make()
    call = compiled(program)
    found = []
    for size in SIZES:
        torch.manual_seed(size)
        with torch.device(device):
            arguments = inputs(size)
        tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        if probe.trains:
            tensors = [tensor.requires_grad_() for tensor in tensors]
            tensors += list(program.parameters()) if isinstance(program, nn.Module) else []
        result = call(*arguments)
        found.append(result)
        if probe.trains:
            results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.grad_fn]
            total = sum(leaf.abs().square().sum() for leaf in results)
            found.append(torch.autograd.grad(total, tensors, allow_unused=True))
        else:
            found.append(arguments)
    if isinstance(program, nn.Module):
        found.append(dict(program.state_dict()))
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, found)  # type: ignore


def _same(found: Any, expected: Any) -> bool:
    left, right = tree_leaves(found), tree_leaves(expected)
    if len(left) != len(right):
        return False
    for one, other in zip(left, right, strict=True):
        if isinstance(other, Tensor):
            if type(one) is not type(other):
                return False
            if type(other) is Tensor and not other.is_sparse and not other.is_nested:
                if one.dtype != other.dtype or one.shape != other.shape:
                    return False
                if not torch.allclose(one, other, **TOLERANCE, equal_nan=True):
                    return False
            elif not torch.allclose(_dense(one), _dense(other), **TOLERANCE):
                return False
        elif isinstance(other, int | float | str | bool | type(None)) and one != other and one == one:
            return False
    return True


def _dense(tensor: Tensor) -> Tensor:
    if tensor.is_nested:
        return tensor.values()
    if isinstance(tensor, DTensor):
        return tensor.full_tensor()
    if tensor.is_sparse:
        return tensor.to_dense()
    if hasattr(tensor, "__tensor_flatten__"):
        return torch.cat([getattr(tensor, name).float().flatten() for name in tensor.__tensor_flatten__()[0]])
    return tensor.as_subclass(Tensor)
