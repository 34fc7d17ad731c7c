"""Branches on data, in Python or C++, of which one side raises: the other is taken, and the graph checks it.

    branch ::= condition (raising side | other side)      assert, `if bad.any(): raise ValueError(...)`, torch._check
    check  ::= condition' & condition' & ...              one bool tensor of the graph for each device

A capture goes on as if no exception were raised. The graph gives the conditions as one more output, which is looked
at before anything that the frame does is seen from outside (`bytecap.driver.undo`). Where they do not hold, the frame
runs plain, and so raises what it would have raised.

Other branches on data still end the graph: both sides of them are common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from absint.data_branches import Trace, passing
from absint.meta import map_leaves
from absint.tensor import tensors_in
from bytecap.breaks.flow import reached, successors_of
from bytecap.bytecode.decode import Program
from bytecap.context_types import Frame, Tracer
from bytecap.errors import DataDependent
from bytecap.graph.builder import tensor_type
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Constant, PythonRaise, Value
from bytecap.objects.numbers.symbolic import DataCondition, as_value
from stagewire.capture import COMPARED, Check
from stagewire.graph import SourceLine, node_references

_RAISES = frozenset({"RAISE_VARARGS", "RERAISE"})
# How many instructions of a side are looked at: messages of exceptions can be long expressions.
_REACH = 300
# They change what a tensor is, not only what it holds: that is not undone.
_CHANGES_OF_KIND = frozenset(
    f"torch.Tensor.{name}"
    for name in ("data.__set__", "set_", "resize_", "resize_as_", "requires_grad_", "detach_", "retain_grad")
)


class Checks:
    """The conditions that one capture takes for true. enabled: whether it may."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.conditions: dict[torch.device, TensorValue] = {}
        self.lines: dict[torch.device, list[SourceLine]] = {}

    def decide(self, frame: Frame, value: Value, index: int) -> bool:
        """bool(value), which the conditional jump at `index` of the frame's program goes by."""
        if not isinstance(value, (TensorValue, DataCondition)):
            return value.truth(frame.tracer)
        if not (isinstance(value, TensorValue) and value.abstract.storage_record.is_deferred):
            try:
                return value.truth(frame.tracer)
            except DataDependent:
                pass
        jump = frame.program.instructions[index]
        target_raises, rest_raises = (_always_raises(frame.program, start) for start in (jump.target, index + 1))
        expected = ("IF_TRUE" in jump.opname) is rest_raises
        if target_raises is not rest_raises and self.assume(frame.tracer, value, expected):
            return expected
        return value.truth(frame.tracer)

    def assume(self, tracer: Tracer, value: TensorValue | DataCondition, expected: bool) -> bool:
        """Take bool(value) for `expected` from here on; False where the graph cannot check it."""
        if isinstance(value, DataCondition):
            return self._assume_of_sizes(tracer, value, expected)
        if not self.enabled or tracer.graph.is_body or value.abstract.numel() != 1:
            return False
        # Of this moment: the tensor itself may be written later.
        if value.abstract.dtype is torch.bool:  # half as dear as a comparison with 0
            holds = _call(tracer, torch.clone if expected else torch.logical_not, value)
        else:
            holds = _call(tracer, torch.ne if expected else torch.eq, value, Constant(0))
        if value.abstract.dim():
            holds = _call(tracer, torch.Tensor.reshape, holds, tracer.objects.fresh(()))
        device = value.abstract.device
        known = self.conditions.get(device)
        self.conditions[device] = holds if known is None else _call(tracer, torch.logical_and, known, holds)
        self.lines.setdefault(device, []).append(tracer.line())
        return True

    def _assume_of_sizes(self, tracer: Tracer, value: DataCondition, expected: bool) -> bool:
        relation = value.if_it_is(expected)
        if not self.enabled or tracer.graph.is_body:
            return False
        gap = _call(tracer, torch.scalar_tensor, as_value(value.gap), dtype=Constant(torch.int64))
        holds = _call(tracer, getattr(torch, COMPARED[relation.operator].__name__), gap, Constant(0))
        if not self.assume(tracer, holds, True):
            return False
        tracer.sizes.env.assume(relation)
        return True

    @property
    def outputs(self) -> list[str]:
        """The values of the graph that have to be true."""
        return [value.name for value in self.conditions.values()]

    def documents(self, first: int) -> tuple[Check, ...]:
        """The checks, whose outputs start at number `first`."""
        lines = (tuple(dict.fromkeys(self.lines[device])) for device in self.conditions)
        return tuple(Check(first + number, each) for number, each in enumerate(lines))


def changes_of(tracer: Tracer) -> tuple[frozenset[str], bool]:
    """The inputs that the graph writes, and whether one of these writes cannot be taken back (`bytecap.driver.undo`).

    Errors: `CannotUndo` where that is so, and the graph has checks.
    """
    written = [
        tensor
        for tensor in tracer.inputs.tensors.values()
        if tensor.real is not None and tensor.abstract.storage_record.version
    ]
    kinds = [(tensor_type(each.abstract) != tensor_type(each.real), each.real) for each in written]
    has_history = any(is_other or (real.requires_grad and not real.is_leaf) for is_other, real in kinds)
    is_final = has_history or any(
        node.target in _CHANGES_OF_KIND and not tracer.graph.made.intersection(node_references(node))
        for node in tracer.graph.nodes
    )
    if is_final and tracer.checks.conditions:
        line = str(next(iter(tracer.checks.lines.values()))[0])
        raise CannotUndo("a branch on a tensor, in a graph whose changes of its inputs cannot be undone", where=line)
    return frozenset(tensor.name for tensor in written), is_final


class CannotUndo(DataDependent):
    """The graph changes an input in a way that cannot be taken back: it has to end at the branch."""


def _call(tracer: Tracer, function: Any, *args: Value, **kwargs: Value) -> TensorValue:
    try:
        made = tracer.evaluate.call_torch(tracer, function, list(args), kwargs)
    except PythonRaise as error:
        raise DataDependent(f"a branch on a tensor that {function.__name__} does not take") from error
    return made


def _always_raises(program: Program, start: int) -> bool:
    """Whether all ways from an instruction end in a `raise` (of this function, caught or not)."""
    passed = reached(start, lambda index: successors_of(program, index))
    ends = [program.instructions[index].opname for index in passed if not successors_of(program, index)]
    return bool(ends) and len(passed) <= _REACH and _RAISES.issuperset(ends)


def call_checked(tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a function whose C++ reads bools to check its arguments (cov, quantile), as abstract tensors of the
    graph, which checks them; None where it does anything else. Where they do not hold the frame runs plain, so that
    torch says itself what is wrong."""
    trace = passing(function, args, kwargs)
    return None if trace is None or not tensors_in(trace.result) else _replayed(tracer, trace)


def _replayed(tracer: Tracer, trace: Trace) -> Any:
    known: dict[int, Any] = {}
    for call in trace.calls:
        if len(call) == 2:
            value = tracer.inputs.value_of(_mapped(call[0], known))
            if not isinstance(value, TensorValue) or not tracer.checks.assume(tracer, value, call[1]):
                raise DataDependent("a check of arguments by C++ depends on data")
            continue
        func, args, kwargs, result = call
        made = tracer.evaluate.record_operator(tracer, func, _mapped(args, known), _mapped(kwargs, known))
        known.update(zip(map(id, tensors_in(result)), tensors_in(made), strict=True))
    return _mapped(trace.result, known)


def _mapped(tree: Any, known: dict[int, Any]) -> Any:
    return map_leaves(tree, lambda leaf: known.get(id(leaf), leaf))
