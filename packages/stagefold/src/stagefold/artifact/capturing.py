"""A whole model as one capture, without running it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

import bytecap
from bytecap.errors import FixedMarkedSize
from stagefold.artifact.dynamic_shapes import OpenSize
from stagefold.errors import CannotExport, NoEffect
from stagefold.torch_capabilities import TORCH
from stagewire.capture import Capture

CAPTURING = __file__
"""The file that lines of graphs name which are none of the model's."""


class Whole(NamedTuple):
    """A captured model.

    inputs: the tensor behind each input of the capture. arguments: what stood for the leaves of the arguments. results:
    what stands for the leaves of the result, an `Output`, or an object of the model's or the arguments'. numbers: which
    of these are numbers, as tensors. tree: the TreeSpec of the result.
    """

    capture: Capture
    inputs: tuple[Any, ...]
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]
    numbers: tuple[bool, ...]
    tree: Any


class Output:
    """Stands for an output of the graph."""

    def __init__(self, number: int) -> None:
        self.number = number


def capture_whole(
    model: Callable[..., Any],
    leaves: Sequence[Any],
    tree: Any,
    labels: Sequence[str],
    opened: Sequence[OpenSize],
    gradients: bool,
) -> Whole:
    """The capture of `model(*args, **kwargs)`, whose arguments are `leaves` in the containers of `tree`; labels: how
    errors name these.

    Tensors among the leaves are stood for by others on the same memory, so that no two are the same object, and what
    users say of sizes stays with the capture. Errors: `CannotExport` for side effects on objects, and bytecap's.
    """
    stands = tuple([_stand_in(leaf) for leaf in leaves])
    for size in opened:
        for leaf, stand in zip(leaves, stands, strict=True):
            if leaf is size.tensor:
                _mark(stand, size)
    taken: list[tuple[Capture, tuple[Any, ...]]] = []
    events: list[bytecap.Event] = []

    def program(*leaves: Any) -> tuple[Any, ...]:
        args, kwargs = TORCH.tree_unflatten(list(leaves), tree)
        found, containers = TORCH.tree_flatten(model(*args, **kwargs))
        numbers = [type(leaf) is int or type(leaf) is float for leaf in found]
        return [_as_tensor(leaf) for leaf in found], numbers, containers

    call = bytecap.optimize(
        program, _Keeping(taken), fullgraph=True, on_event=events.append, options=bytecap.Options(allow_empty=True)
    )
    try:
        with torch.set_grad_enabled(gradients):
            results, numbers, containers = call(*stands)
    except FixedMarkedSize as error:
        named = re.compile(r"leaves\[(\d+)\]\.shape\[(\d+)\]")
        message = named.sub(lambda found: f"{labels[int(found[1])]}.size({found[2]})", error.message)
        raise CannotExport(message.replace("marked as dynamic", "left open"), where=error.where) from None
    effects = [effect for event in events if isinstance(event, bytecap.Captured) for effect in event.effects]
    written = [what for kind, what in effects if kind == "write"]
    if written:
        raise CannotExport(f"the model writes {', '.join(written)}, which is no tensor that it changes in place")
    if effects:
        called = ", ".join(what for _, what in effects)
        warnings.warn(f"the artifact does not call {called}, which the model does", NoEffect, stacklevel=3)
    if not taken:
        raise CannotExport("the model calls no operation on tensors")
    return Whole(*taken[0], stands, tuple(results), tuple(numbers), containers)


class _Keeping:
    """A backend that keeps the capture and computes nothing."""

    takes_symbols = True

    def __init__(self, taken: list[tuple[Capture, tuple[Any, ...]]]) -> None:
        self._taken = taken

    def __call__(self, capture: Capture, inputs: tuple[Any, ...]) -> Callable[..., tuple[Any, ...]]:
        self._taken.append((capture, inputs))

        def call(*inputs: Any) -> tuple[Any, ...]:
            return tuple([Output(number) for number in range(len(capture.graph.outputs))])

        call.atomic = True  # type: ignore[attr-defined]  # nothing is to be copied
        return call


def _stand_in(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
        raise CannotExport(f"an argument is a {type(leaf).__name__}, not a plain tensor")
    return leaf.detach().requires_grad_(leaf.requires_grad)


def _mark(tensor: torch.Tensor, size: OpenSize) -> None:
    if size.is_promised:
        least = 1 if size.lower is None else size.lower
        bytecap.mark_dynamic(tensor, size.dimension, min=least, max=size.upper)
    else:
        bytecap.maybe_mark_dynamic(tensor, size.dimension)


def _as_tensor(leaf: Any) -> Any:
    """A number as a tensor of the graph: it may be computed of sizes."""
    if type(leaf) is int:
        return torch.full((), leaf, dtype=torch.int64)
    return torch.full((), leaf, dtype=torch.float64) if type(leaf) is float else leaf
