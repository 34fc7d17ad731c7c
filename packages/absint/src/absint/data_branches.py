"""Functions of torch whose C++ reads bools of data to check its arguments: cov, quantile, istft.

    trace = passing(torch.quantile, (x, q), {})      # None where it does anything else with data
    trace.calls                                      # (op, args, kwargs, result), and (tensor, what it is taken for)

Of each bool that is read that side is taken which neither raises nor warns; where both do, or none, there is no trace.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from absint.errors import DataDependentError
from absint.meta import map_leaves
from absint.mode import AbstractMode, abstract_call, asks_layout
from absint.tensor import AbstractTensor, tensors_in
from stagewire.errors import StageError

_MOST_READS = 8


class _Undecided(Exception):
    """One bool more is read than was decided."""


class Trace(AbstractMode):
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
        if is_number and all(id(tensor) in self.numbers for tensor in tensors_in((args, kwargs))):
            real = map_leaves((args, kwargs), lambda leaf: self.numbers.get(id(leaf), leaf))
            self.numbers[id(result)] = func(*real[0], **real[1])
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


def passing(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Trace | None:
    """What the function does where all checks of its arguments pass, which may be abstract tensors."""
    trace = _traced(function, args, kwargs, [])
    while trace is not None and not trace.is_whole:
        more = [_traced(function, args, kwargs, [*trace.sides, side]) for side in (True, False)]
        trace = next(filter(None, more)) if more.count(None) == 1 and len(trace.sides) < _MOST_READS else None
    return trace


def _traced(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], sides: list[bool]
) -> Trace | None:
    """What the function does on these sides; None where it raises or warns."""
    trace = Trace(sides)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")
            trace.result = abstract_call(function, args, kwargs, mode=trace)
            trace.is_whole = True
    except _Undecided:
        pass
    except (StageError, RuntimeError, IndexError, ValueError, Warning):
        return None
    given = {id(tensor.storage_record) for tensor in tensors_in((args, kwargs))}
    return None if any(id(memory) in given for memory in trace.written) else trace
