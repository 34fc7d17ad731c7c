"""The backward of a traced program, and the program that a gradient is.

    order 0   inputs                      -> outputs
    order 1   inputs, tangents            -> gradients of the inputs
    order n   inputs, tangents of 1 to n  -> gradients of what order n - 1 takes

Each is traced by torch's own autograd from the captured calls on, so that what the program detaches, or computes with
grad mode off, is constant to every order. A program of order n takes the inputs as they stood before the call, and
writes into none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from absint import Meta, to_wire
from absint.errors import TypeRuleError
from absint.gradients import CHECKED, checked_backward, reached
from absint.meta import contiguous
from absint.strides import is_dense
from aotgrad.errors import BackwardFailed, DoubleBackward, NoFunctionalForm
from aotgrad.higher_order import ONCE
from aotgrad.joint import Joint
from aotgrad.torch_capabilities import TORCH
from aotgrad.tracer.mode import TraceMode
from aotgrad.tracer.outputs import Placeholder, Plan, plan_more_outputs
from aotgrad.tracer.values import Traced
from stagewire.errors import StageError
from stagewire.grad import BoundInput, returned_inputs
from stagewire.graph import Ref, references
from stagewire.graph_passes import live_nodes, operands


class Backward(NamedTuple):
    """tangents: their values by result number. gradients: the value of each input's. closed_by: as in `Binding`."""

    tangents: dict[int, Ref]
    gradients: list[Ref | None]
    closed_by: tuple[tuple[int, ...], ...] = ()


def backward(mode: TraceMode, inputs: list[Placeholder], plan: Plan) -> Backward:
    """The backward of a traced program, from the tangents of its results to the gradients of its inputs."""
    numbers = [number for number, tensor in enumerate(plan.tensors) if tensor is not None]
    if not numbers or not any(given.leaf.requires_grad and given.leaf.is_leaf for given in inputs):
        plan.tensors[:] = [None] * len(plan.tensors)
        return Backward({}, [None] * len(inputs))
    starts = [_tangent(mode, number, plan.tensors[number]) for number in numbers]
    results = [plan.tensors[number] for number in numbers]
    histories = Histories(results) if len(results) > 1 else None
    found = _run_engine(mode, inputs, results, starts, create_graph=False)
    for given, gradient in zip(inputs, found, strict=True):
        if gradient is not None and gradient.meta.device != given.leaf.meta.device:
            raise NoFunctionalForm("a gradient through a copy from one device to another")
    values = [None if gradient is None else mode.content(gradient) for gradient in found]
    tangents = {number: start.value for number, start in zip(numbers, starts, strict=True)}
    return Backward(tangents, values, () if histories is None else histories.closed_by())


def gradient_program(mode: TraceMode, inputs: list[Placeholder], plan: Plan) -> tuple[list[Placeholder], Plan]:
    """The inputs and outputs of the program of the next order."""
    numbers = [number for number, tensor in enumerate(plan.tensors) if tensor is not None]
    starts = [_tangent(mode, number, plan.tensors[number], requires_grad=True) for number in numbers]
    found = _run_engine(mode, inputs, [plan.tensors[number] for number in numbers], starts, create_graph=True)
    more = list(inputs)
    for start in starts:
        start.memory.input = len(more)
        bound = BoundInput(start.value.name, to_wire(start.meta, requires_grad=True))
        more.append(Placeholder(bound, start, start, start.grad_fn, True))
    return more, plan_more_outputs(mode, Plan([], [], [], []), more, tuple(found))


def refuse_second_gradients(mode: TraceMode, inputs: list[Placeholder], plan: Plan) -> None:
    """Where the gradients depend on the inputs through a custom function that is marked with `once_differentiable`.

    Such a function's gradient leads to a node that raises, and behind which there is no input: in a backward for the
    inputs alone, as this one is, the engine never comes to it, and the gradient would be taken for a constant.
    """
    numbers = [number for number, tensor in enumerate(plan.tensors) if tensor is not None]
    starts = [_tangent(mode, number, plan.tensors[number]) for number in numbers]
    found = _run_engine(mode, inputs, [plan.tensors[number] for number in numbers], starts, create_graph=True)
    if any(type(node).__name__ == "Error" for node in reached([one for one in found if one is not None])):
        raise BackwardFailed(ONCE)


def _run_engine(
    mode: TraceMode, inputs: list[Placeholder], roots: list[Traced], starts: list[Traced], *, create_graph: bool
) -> list[Traced | None]:
    """For each input its gradient; None where it wants none or has none."""
    wanted = [given.leaf for given in inputs if given.leaf.requires_grad and given.leaf.is_leaf]
    try:
        # torch.autograd.grad with grad_outputs imports symbolic_shapes; the engine itself does not.
        with checked_backward(roots) if mode.has_met(CHECKED) else nullcontext():
            found = TORCH.run_engine(
                tuple(roots), tuple(starts), create_graph, create_graph, tuple(wanted),
                allow_unreachable=True, accumulate_grad=False,
            )  # fmt: skip
    except TypeRuleError as error:  # what eager's backward refuses as well
        raise BackwardFailed(error.message) from error
    except StageError:
        raise
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        raise BackwardFailed(str(error)) from error
    # (A zero without dimensions is a real tensor: see `absint.mode`.)
    traced = [mode.lift(one) if one is not None and not isinstance(one, Traced) else one for one in found]
    by_leaf = {id(leaf): gradient for leaf, gradient in zip(wanted, traced, strict=True)}
    return [by_leaf.get(id(given.leaf)) for given in inputs]


def _tangent(mode: TraceMode, number: int, tensor: Traced, *, requires_grad: bool = False) -> Traced:
    meta = tensor.meta
    if is_dense(meta.shape, meta.stride):
        meta = Meta(meta.shape, meta.stride, meta.dtype, meta.device)
    else:
        meta = contiguous(meta.shape, meta.dtype, meta.device)
    value = mode.recorder.define(mode.recorder.fresh_name(f"tangent_{number}"), meta)
    return mode.owner(meta, value, requires_grad=requires_grad)


def refuse_overwritten(joint: Joint, written: frozenset[int]) -> None:
    """A gradient that depends on what an input held before the program overwrote it: nobody has kept that."""
    names = {joint.binding.inputs[number].name for number in written}
    used = {name for arg in joint.graph.outputs for name in references(arg)}
    for node in live_nodes(joint.graph) if names else ():
        used.update(operands(node))
    used.update(joint.binding.inputs[number].name for number in returned_inputs(joint.binding))
    if found := sorted(names & used):
        raise DoubleBackward(
            f"the gradient of a compiled gradient of a program that writes into {', '.join(found)}",
            fix="Write the update outside of the compiled region, or run this part without compilation.",
        )


class Histories:
    """The nodes of autograd behind each of several results, from before the engine runs until it has.

    They tell which results have a backward that another result's frees: those with a node in common that saves tensors.
    Eager refuses the second of these, and runs that of results that share nothing, or only what saves nothing.
    """

    def __init__(self, results: Sequence[torch.Tensor]) -> None:
        self._nodes = [reached([result]) for result in results]
        # A Function of Python tells what it saves before it is freed; the nodes of C++ tell behind it.
        self._saving = {
            node: bool(node._raw_saved_tensors)
            for node in set().union(*self._nodes)
            if hasattr(node, "_raw_saved_tensors")
        }

    def closed_by(self) -> tuple[tuple[int, ...], ...]:
        """For each result the results, itself among them, whose backward uses what its own has freed.

        Empty where each frees what all of them use. To be asked when the engine has run and has freed everything.
        """
        freed_nodes = {node for node in set().union(*self._nodes) if self._frees(node)}  # each is asked once
        freed = [nodes & freed_nodes for nodes in self._nodes]
        found = tuple(
            tuple(number for number, others in enumerate(freed) if not own.isdisjoint(others)) for own in freed
        )
        return () if all(len(numbers) == len(freed) for numbers in found) else found

    def _frees(self, node: Any) -> bool:
        return self._saving[node] if node in self._saving else _is_freed(node)


def _is_freed(node: Any) -> bool:
    """Whether a node of C++ has saved a tensor that is gone: to read it is an error then."""
    for name in _saved_names(type(node)):
        try:
            getattr(node, name)
        except RuntimeError:
            return True
    return False


@lru_cache(maxsize=1024)
def _saved_names(kind: type) -> tuple[str, ...]:
    """The attributes of a class of nodes that read what one has saved."""
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))
