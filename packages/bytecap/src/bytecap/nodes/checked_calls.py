"""Functions of torch whose C++ reads data to check its arguments: their calls of ATen, and checks of the graph.

    call ::= function of torch                     cov, quantile, istft...
           | (call of ATen | read of a bool)*      the side that neither raises nor warns: the graph checks it

Where a check does not hold the frame runs plain (`data_checks`), so that torch says itself what is wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from absint import AbstractMode, AbstractTensor, abstract_call
from absint.errors import DataDependentError
from absint.meta import leaves, map_leaves
from absint.mode import asks_layout
from bytecap.context_types import Tracer
from bytecap.errors import DataDependent, StageError
from bytecap.objects.arrays.tensors import TensorValue

_MOST_READS = 8


class _Undecided(Exception):
    """One bool more is read than was decided."""


class _Trace(AbstractMode):
    """Notes the calls of ATen, (op, args, kwargs, result), and the reads of bools, (tensor, what it is taken for).

    sides: what the bools are taken for, in order. is_whole: whether the function came to its end. numbers: what is
    computed of numbers alone, for real.
    """

    def __init__(self, sides: list[bool]) -> None:
        super().__init__()
        self.sides = sides
        self.calls: list[tuple[Any, ...]] = []
        self.numbers: dict[int, torch.Tensor] = {}
        self.result: Any = None
        self.is_whole = False

    def on_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        record = None if asks_layout(func) else self.record(func)
        if record is None or (record.is_composite and record.rule is None):
            return super().on_op(func, args, kwargs)
        if record.name == "aten._local_scalar_dense.default" and args[0].storage_record.known() is None:
            return self._read(args[0])
        if record.name == "aten.equal.default":  # how C++ asks whether a bool is true
            same = self.on_op(torch.ops.aten.eq.Tensor, args, {})
            return self._read(self.on_op(torch.ops.aten.all.default, (same,), {}))
        result = super().on_op(func, args, kwargs)
        self.calls.append((func, args, kwargs, result))
        is_number = isinstance(result, AbstractTensor) and not result.dim() and result.device.type == "cpu"
        if is_number and all(id(tensor) in self.numbers for tensor in _tensors((args, kwargs))):
            self.numbers[id(result)] = func(*_mapped(args, self.numbers), **_mapped(kwargs, self.numbers))
        return result

    def _read(self, tensor: AbstractTensor) -> bool:
        if tensor.dtype is not torch.bool:
            raise DataDependentError("a number that C++ reads")
        if id(tensor) in self.numbers:
            return bool(self.numbers[id(tensor)])
        count = sum(len(call) == 2 for call in self.calls)
        if count == len(self.sides):
            raise _Undecided
        self.calls.append((tensor, self.sides[count]))
        return self.sides[count]


def call_checked(tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a function that reads bools, as abstract tensors of the graph; None where it does anything else."""
    trace = _traced(function, args, kwargs, [])
    while trace is not None and not trace.is_whole:
        more = [_traced(function, args, kwargs, [*trace.sides, side]) for side in (True, False)]
        trace = next(filter(None, more)) if more.count(None) == 1 and len(trace.sides) < _MOST_READS else None
    return None if trace is None or not _tensors(trace.result) else _replayed(tracer, trace)


def _traced(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], sides: list[bool]
) -> _Trace | None:
    """What the function does on these sides; None where it raises or warns."""
    trace = _Trace(sides)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")
            trace.result = abstract_call(function, args, kwargs, mode=trace)
            trace.is_whole = True
    except _Undecided:
        pass
    except (StageError, RuntimeError, IndexError, ValueError, Warning):
        return None
    given = {id(tensor.storage_record) for tensor in _tensors((args, kwargs))}
    return None if any(id(memory) in given for memory in trace.written) else trace


def _replayed(tracer: Tracer, trace: _Trace) -> Any:
    known: dict[int, Any] = {}
    for call in trace.calls:
        if len(call) == 2:
            value = tracer.inputs.value_of(_mapped(call[0], known))
            if not isinstance(value, TensorValue) or not tracer.checks.assume(tracer, value, call[1]):
                raise DataDependent("a check of arguments by C++ depends on data")
            continue
        func, args, kwargs, result = call
        made = tracer.evaluate.record_operator(tracer, func, _mapped(args, known), _mapped(kwargs, known))
        known.update(zip(map(id, _tensors(result)), _tensors(made), strict=True))
    return _mapped(trace.result, known)


def _mapped(tree: Any, known: dict[int, Any]) -> Any:
    return map_leaves(tree, lambda leaf: known.get(id(leaf), leaf))


def _tensors(tree: Any) -> list[AbstractTensor]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, AbstractTensor)]
