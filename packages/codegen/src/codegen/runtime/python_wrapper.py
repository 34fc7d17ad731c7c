"""The reference executor: one readable Python step for each instruction of a unit.

A run that raises has left its inputs as they were, or raises `PartlyDone` of what it met.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from codegen.errors import WrongResult
from codegen.runtime.arguments import Environment, Symbols, closure, operator_of, resolve, sizes, symbol_reader
from codegen.runtime.library import KERNEL, raise_status
from codegen.runtime.memory_kinds import plan_memory
from stagewire.errors import PartlyDone
from stagewire.expr import Dim
from stagewire.program import Allocate, CallExtern, Instruction, Launch, MakeView, Release, Unit
from stagewire.types import ITEM_SIZE, TensorType

Function = Callable[[Sequence[torch.Tensor], Sequence[int]], None]
"""A kernel on the buffers and the sizes of a launch."""


class PythonWrapper:
    """Runs a unit's instructions on tensors, in order. `functions`: the kernels, by name."""

    def __init__(self, unit: Unit, functions: Mapping[str, Function]) -> None:
        self.unit = unit
        self.functions = functions
        self.symbols_of = symbol_reader(unit)
        calls = [(n, one) for n, one in enumerate(unit.instructions) if isinstance(one, CallExtern)]
        self.calls = {number: closure(one, operator_of(one)) for number, one in calls}

    @cached_property
    def distance(self) -> Mapping[str, Dim]:
        """Bytes from where the memory of each buffer begins to its first element."""
        return plan_memory(self.unit).distance

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
            case Allocate(buffer, type, None):
                shape, stride = sizes(type.shape, symbols), sizes(type.stride, symbols)
                dtype = getattr(torch, type.dtype)
                environment[buffer] = torch.empty_strided(shape, stride, dtype=dtype, device=type.device)
            case Allocate(buffer, type, str(base)) | MakeView(buffer, base, type):
                before = environment[base] if isinstance(instruction, MakeView) else environment.pop(base)
                numbers = (*type.shape, *type.stride, self.distance[buffer] - self.distance[base])
                environment[buffer] = reading_of(before, type.dtype, sizes(numbers, symbols))
            case Launch(kernel, buffers, dims):
                self.launch(kernel, [environment[b] for b in buffers], sizes(dims, symbols), symbols)
            case CallExtern(results=names, result_types=types):
                function, operands, dims = self.calls[number]
                result = function(*(environment[name] for name in operands), *sizes(dims, symbols))
                made = result if isinstance(result, tuple | list) else (result,)
                for name, type_, value in zip(names, types or (None,) * len(names), made, strict=False):
                    if name:
                        environment[name] = value if type_ is None else settled(value, type_, symbols)
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


def at_distance(tensor: torch.Tensor, type_: TensorType, distance: int) -> torch.Tensor:
    """A tensor of `type_` on the memory of `tensor`, `distance` bytes after its first element."""
    return reading_of(tensor, type_.dtype, (*type_.shape, *type_.stride, distance))  # type: ignore[arg-type]


def reading_of(tensor: torch.Tensor, dtype: str, numbers: tuple[int, ...]) -> torch.Tensor:
    """A tensor of `dtype` on the memory of `tensor`.

    numbers: its sizes, its strides, and how many bytes after the first element of `tensor` it begins.
    """
    rank = len(numbers) // 2
    shape, stride, distance = numbers[:rank], numbers[rank:-1], numbers[-1]
    item = ITEM_SIZE[dtype]
    start = tensor.storage_offset() * tensor.element_size() + distance
    window = torch.empty(0, dtype=getattr(torch, dtype), device=tensor.device)
    return window.set_(tensor.untyped_storage(), start // item, shape, stride)  # type: ignore[call-overload]


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
