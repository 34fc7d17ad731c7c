"""What the caller gets back: fresh results, his own inputs, views to be rebuilt, new values of mutated inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
import torch
from msgspec.structs import replace

from absint import to_wire
from absint.wire import to_arg
from aotgrad.errors import MetadataMutation, UnsupportedOutput
from aotgrad.tracer.mode import TraceMode
from aotgrad.tracer.values import DATA, Memory, Step, Traced
from stagewire.grad import BoundInput, BoundOutput, Fresh, Literally, Mutation, SameAsInput, ViewOf
from stagewire.graph import Ref

_DETACH = ("aten.detach.default", ())
_DETACHING = (_DETACH, (DATA, ()))


class Placeholder(msgspec.Struct, eq=False):
    """One input, `bound` in the document: `leaf` is what gradients are asked for, `tensor` what the program works on.

    They differ for inputs that are not leaves: the program then works on a copy, so that it may write into it as
    eager may. `start` is the autograd node of `tensor` before the program ran, `started` whether it required grad.
    """

    bound: BoundInput
    leaf: Traced
    tensor: Traced
    start: Any
    started: bool


class Plan(msgspec.Struct, eq=False):
    """The results of the forward and how outputs are made from them.

    results: values to return. tensors: for each result the tensor that a tangent belongs to, or None.
    """

    results: list[Ref]
    tensors: list[Traced | None]
    outputs: list[BoundOutput]
    mutations: list[Mutation]

    def add(self, value: Ref, tensor: Traced) -> int:
        """A new result; returns its number."""
        self.results.append(value)
        self.tensors.append(tensor if is_differentiable(tensor) else None)
        return len(self.results) - 1


def is_differentiable(tensor: Traced) -> bool:
    """May a tangent come back for it."""
    return tensor.requires_grad and tensor.grad_fn is not None


def plan_outputs(mode: TraceMode, inputs: list[Placeholder], outputs: tuple[Any, ...]) -> Plan:
    """Decide for each mutated input and each output of the program where it comes from."""
    plan = Plan([], [], [], [])
    for index, given in enumerate(inputs):
        _plan_mutation(plan, index, given)
    return plan_more_outputs(mode, plan, inputs, outputs)


def plan_more_outputs(mode: TraceMode, plan: Plan, inputs: list[Placeholder], outputs: tuple[Any, ...]) -> Plan:
    """Add to `plan`, for each output of the program, where it comes from."""
    groups = _groups(outputs)
    done: dict[int, int] = {}  # memory or tensor identity -> result number
    first: dict[int, int] = {}  # tensor identity -> the output that it was first
    for number, output in enumerate(outputs):
        bound = _plan_output(mode, plan, inputs, output, groups, done)
        if isinstance(bound, ViewOf) and first.setdefault(id(output), number) != number:
            bound = replace(bound, same_as=first[id(output)])
        plan.outputs.append(bound)
    return plan


def _plan_mutation(plan: Plan, index: int, given: Placeholder) -> None:
    memory = given.tensor.memory
    if given.tensor.steps:
        raise MetadataMutation(f"input {index} changes its sizes in place")
    if memory.generation == 0:
        return
    visible = given.tensor.grad_fn is not given.start and given.tensor.requires_grad
    result = plan.add(memory.value, given.tensor)
    if not visible:
        plan.tensors[result] = None
    plan.mutations.append(Mutation(index, result, visible, memory.versions))


def _groups(outputs: tuple[Any, ...]) -> dict[int, dict[int, Traced]]:
    """The different tensors among the outputs that stand on each memory, by identity."""
    seen: dict[int, dict[int, Traced]] = {}
    for output in outputs:
        if isinstance(output, Traced):
            seen.setdefault(id(output.memory), {})[id(output)] = output
    return seen


def _base(memory: Memory, group: Iterable[Traced]) -> Traced | None:
    """Of which tensor the others of its memory are made: one that is detached from the first one, if all come of it."""
    for tensor in group:
        path = tensor.steps
        is_detached = path and all((step.target, step.args) in _DETACHING for step in path)
        if is_detached and all(other.steps[: len(path)] == path for other in group):
            return tensor
    return memory.base


def _plan_output(
    mode: TraceMode,
    plan: Plan,
    inputs: list[Placeholder],
    output: Any,
    groups: dict[int, dict[int, Traced]],
    done: dict[int, int],
) -> BoundOutput:
    if isinstance(output, torch.Tensor) and not isinstance(output, Traced):
        output = mode.lift(output)
    if not isinstance(output, Traced):
        return Literally(output)
    memory = output.memory
    if memory.input is not None:
        given = inputs[memory.input]
        if output is given.tensor:
            return SameAsInput(memory.input)
        return _view_of("input", memory.input, output, given.tensor)
    group = groups[id(memory)].values()
    if len(group) == 1:
        return _fresh(mode, plan, output, output, done)
    base = _base(memory, group)
    if base is None or output.steps[: len(base.steps)] != base.steps:
        raise UnsupportedOutput(f"several outputs share the memory of {output.meta}, whose base changed its sizes")
    fresh = _fresh(mode, plan, base, memory, done)
    if output is base:
        return fresh
    if output.requires_grad and not base.requires_grad:
        raise UnsupportedOutput(f"an output that requires grad is a view of one that does not ({output.meta})")
    return _view_of("result", fresh.result, output, base)


def _fresh(mode: TraceMode, plan: Plan, tensor: Traced, key: Traced | Memory, done: dict[int, int]) -> Fresh:
    result = done.get(id(key))
    if tensor.requires_grad and tensor.is_leaf:
        raise UnsupportedOutput(f"an output {tensor.meta} is a leaf that the program makes and that requires grad")
    if result is None:
        value = mode.content(tensor)
        value = mode.with_stride(value, tensor.meta)
        result = done[id(key)] = plan.add(value, tensor)
    return Fresh(result, plan.tensors[result] is not None)


def _view_of(of: Literal["input", "result"], number: int, output: Traced, base: Traced) -> ViewOf:
    chain, mode = _chain(output, base), torch.is_grad_enabled()
    steps = output.steps[len(base.steps) :]
    # Where nothing has a history, the mode changes nothing.
    other = tuple(at for at, step in enumerate(steps) if step.grad is not mode) if base.requires_grad else ()
    pieces = tuple((at, step.piece[2]) for at, step in enumerate(steps) if step.piece is not None)
    return ViewOf(of, number, chain, to_wire(output.meta), other_mode=other, pieces=pieces)


def _chain(output: Traced, base: Traced) -> tuple[tuple[str, Any], ...]:
    chain = [_link(step) for step in output.steps[len(base.steps) :]]
    names = [target for target, _ in chain]
    if "aten._conj.default" in names and "aten.view_as_real.default" in names:
        raise UnsupportedOutput("the real or imaginary part of a conjugate, as a view")
    is_detached = any(link in _DETACHING for link in chain)
    if base.requires_grad and not output.requires_grad and not is_detached:
        chain.append(_DETACH)
    if is_detached and output.requires_grad:
        raise UnsupportedOutput(f"an output {output.meta} is detached from its base and requires grad itself")
    return tuple(chain)


def _link(step: Step) -> tuple[str, Any]:
    if step.kwargs:
        raise UnsupportedOutput(f"a view output made with keyword arguments: {step.func}")
    target, args = (step.target, step.args) if step.piece is None else step.piece[:2]
    return target, tuple(to_arg(arg) for arg in args)
