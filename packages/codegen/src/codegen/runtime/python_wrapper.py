"""The reference executor: one readable Python step for each instruction of a unit.

A run that raises has left its inputs as they were, or raises `PartlyDone` of what it met.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from codegen.errors import WrongResult
from codegen.runtime.arguments import Environment, Symbols, operator_of, resolve, sizes, symbol_reader
from codegen.runtime.library import KERNEL, raise_status
from stagewire.errors import PartlyDone
from stagewire.program import Allocate, CallExtern, Instruction, Launch, MakeView, Release, Unit
from stagewire.types import TensorType

Function = Callable[[Sequence[torch.Tensor], Sequence[int]], None]
"""A kernel on the buffers and the sizes of a launch."""


class PythonWrapper:
    """Runs a unit's instructions on tensors, in order. `functions`: the kernels, by name."""

    def __init__(self, unit: Unit, functions: Mapping[str, Function]) -> None:
        self.unit = unit
        self.functions = functions
        self.symbols_of = symbol_reader(unit)
        self.stated = stated_offsets(unit)
        calls = [(n, one) for n, one in enumerate(unit.instructions) if isinstance(one, CallExtern)]
        self.operators = {number: operator_of(one) for number, one in calls}

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        inputs = taken(inputs)
        if not inputs and self.unit.inputs:
            self.give_back()
            return ()
        symbols = self.symbols_of(inputs)
        environment: Environment = dict(zip(self.unit.inputs, inputs, strict=True))
        del inputs
        has_written = False
        try:
            for writes in self.steps(environment, symbols):
                has_written |= writes
        except PartlyDone:
            raise
        except Exception as error:
            if has_written:
                raise PartlyDone(error) from error
            raise
        return tuple(resolve(output, environment, symbols) for output in self.unit.outputs)

    def give_back(self) -> None:
        """Let go of the memory that is kept for the next run."""

    def steps(self, environment: Environment, symbols: Symbols) -> Iterator[bool]:
        """Run what the unit does, step by step; whether a step writes an input is told before it is run."""
        for number, instruction in enumerate(self.unit.instructions):
            yield isinstance(instruction, Allocate) and instruction.reuse in self.unit.written
            self.run(number, instruction, environment, symbols)

    def run(self, number: int, instruction: Instruction, environment: Environment, symbols: Symbols) -> None:
        """Run one instruction, number `number` of the unit."""
        match instruction:
            case Allocate(buffer, type, reuse):
                environment[buffer] = allocate(type, symbols, environment.pop(reuse) if reuse else None)
            case MakeView(buffer, base, type):
                environment[buffer] = view(environment[base], type, symbols, self.stated.get(base, 0))
            case Launch(kernel, buffers, dims):
                self.launch(kernel, [environment[b] for b in buffers], sizes(dims, symbols), symbols)
            case CallExtern():
                call(instruction, self.operators[number], environment, symbols)
            case Release(buffer):
                environment.pop(buffer, None)

    def launch(self, kernel: str, buffers: list[torch.Tensor], dims: tuple[int, ...], symbols: Symbols) -> None:
        """Run one kernel; `symbols` are the values of this run."""
        self.functions[kernel](buffers, dims)


def taken(inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """The inputs, given as they are or as one list, which is emptied."""
    if len(inputs) != 1 or not isinstance(inputs[0], list):
        return inputs
    found = tuple(inputs[0])
    inputs[0].clear()
    return found


def allocate(type: TensorType, symbols: Symbols, memory: torch.Tensor | None = None) -> torch.Tensor:
    """A tensor of `type` in new memory, or in that of `memory`."""
    dtype = getattr(torch, type.dtype)
    shape, stride = sizes(type.shape, symbols), sizes(type.stride, symbols)
    if memory is None:
        return torch.empty_strided(shape, stride, dtype=dtype, device=type.device)
    start = memory.storage_offset() * memory.element_size() // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=type.device).set_(memory.untyped_storage(), start, shape, stride)


def stated_offsets(unit: Unit) -> dict[str, Any]:
    """The storage offset that the unit states for each buffer that is a base of views; 0 for memory of its own."""
    types = zip(unit.inputs, unit.input_types, strict=True)
    stated = {name: type.storage_offset for name, type in types if isinstance(type, TensorType)}
    for instruction in unit.instructions:
        if isinstance(instruction, MakeView):
            stated[instruction.buffer] = instruction.type.storage_offset
    return stated


def view(base: torch.Tensor, type: TensorType, symbols: Symbols, stated: Any) -> torch.Tensor:
    """A strided window on the storage of `base`, read as the dtype of `type`.

    stated: the storage offset of `base` for which that of `type` is meant; wherever `base` really begins, the window
    lies as far from it as stated.
    """
    dtype = getattr(torch, type.dtype)
    shape, stride = sizes(type.shape, symbols), sizes(type.stride, symbols)
    offset, before = sizes((type.storage_offset, stated), symbols)
    start = offset + (base.storage_offset() - before) * base.element_size() // dtype.itemsize
    if base.dtype == dtype:
        return base.as_strided(shape, stride, start)
    return torch.empty(0, dtype=dtype, device=type.device).set_(base.untyped_storage(), start, shape, stride)


def from_address(address: int, keep: object) -> Function:
    """The kernel at an address as a function, which keeps `keep` alive. Errors that it met are raised."""
    function = KERNEL(address)

    def launch(buffers: Sequence[torch.Tensor], dims: Sequence[int], keep: object = keep) -> None:
        pointers = (ctypes.c_void_p * len(buffers))(*(buffer.data_ptr() for buffer in buffers))
        numbers = (ctypes.c_int64 * len(dims))(*dims)
        status = ctypes.c_int64(0)
        function(pointers, numbers, torch.get_num_threads(), ctypes.byref(status))
        raise_status(status.value)

    return launch


def call(instruction: CallExtern, operator: Callable[..., Any], environment: Environment, symbols: Symbols) -> None:
    """Run one operator and keep the results that are named, in the strides that the program states."""
    args = [resolve(arg, environment, symbols) for arg in instruction.args]
    kwargs = {key: resolve(arg, environment, symbols) for key, arg in instruction.kwargs.items()}
    result = operator(*args, **kwargs)
    results = result if isinstance(result, tuple | list) else (result,)
    for number, (name, value) in enumerate(zip(instruction.results, results, strict=False)):
        if name:
            type_ = instruction.result_types[number] if instruction.result_types else None
            environment[name] = value if type_ is None else settled(value, type_, symbols)


def settled(tensor: torch.Tensor, type_: TensorType, symbols: Symbols) -> torch.Tensor:
    """`tensor`, or a copy in the strides of `type_`; another dtype or shape is a `WrongResult`."""
    if tensor.dtype != getattr(torch, type_.dtype) or tuple(tensor.shape) != sizes(type_.shape, symbols):
        raise WrongResult(f"an operator returned {tensor.dtype} {tuple(tensor.shape)} where the program states {type_}")
    stride = sizes(type_.stride, symbols)
    same = all(a == b for a, b, n in zip(tensor.stride(), stride, tensor.shape, strict=True) if n > 1)
    if same or tensor.numel() == 0:
        return tensor
    return copied(tensor, stride)


def copied(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """A copy in these strides, which begins where torch's allocator lets tensors begin."""
    copy = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    copy[repeats_once(copy)].copy_(tensor.detach()[repeats_once(copy)])
    return copy


def repeats_once(tensor: torch.Tensor) -> tuple[slice, ...]:
    """Where every element in memory is once: those of one place are all alike."""
    return tuple([slice(0, 1) if step == 0 else slice(None) for step in tensor.stride()])
