"""`Program`: sources of kernels and the wrapper that runs them.

program ::= binding forward:unit backward:unit?
unit    ::= target source isa sanitizer* kernel* input* output* instruction* choice* (host_source host_kernel*)?
instruction ::= allocate | view | launch | call | free
choice  ::= start stop (instruction*)*                what may stand for the instructions from start to stop
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from stagewire.expr import Dim
from stagewire.grad import Binding
from stagewire.graph import Arg, references
from stagewire.types import ScalarType, TensorType


class Allocate(msgspec.Struct, frozen=True, tag="allocate", tag_field="kind"):
    """A new tensor, or the memory of the dead buffer `reuse` under a new type."""

    buffer: str
    type: TensorType
    reuse: str | None = None


class MakeView(msgspec.Struct, frozen=True, tag="make_view", tag_field="kind"):
    """A strided window on `base` (offset from the start of the base's storage)."""

    buffer: str
    base: str
    type: TensorType


class Launch(msgspec.Struct, frozen=True, tag="launch", tag_field="kind"):
    """Run the kernel `kernel` of the source on these buffers' data pointers, in the order of its parameters."""

    kernel: str
    buffers: tuple[str, ...]
    sizes: tuple[Dim, ...] = ()


class CallExtern(msgspec.Struct, frozen=True, tag="call_extern", tag_field="kind"):
    """results = target(*args, **kwargs) through ATen; `Ref`s name buffers; "" for results not kept.

    `result_types`, where given, states the type of each result (None for one not kept): an executor may then write the
    result into memory of its own, and hands on a result of other strides only after copying it to these.
    """

    target: str
    args: tuple[Arg, ...]
    kwargs: dict[str, Arg]
    results: tuple[str, ...]
    result_types: tuple[TensorType | None, ...] = ()


class Release(msgspec.Struct, frozen=True, tag="release", tag_field="kind"):
    """Drop the reference to a buffer."""

    buffer: str


Instruction = Allocate | MakeView | Launch | CallExtern | Release


def used_buffers(instruction: Instruction) -> tuple[str, ...]:
    """The buffers that an instruction reads, writes or takes the memory of, in order; releasing one is no use."""
    match instruction:
        case Allocate(reuse=str(reuse)):
            return (reuse,)
        case MakeView(base=base):
            return (base,)
        case Launch(buffers=buffers):
            return buffers
        case CallExtern(args=args, kwargs=kwargs):
            return tuple(name for arg in (*args, *kwargs.values()) for name in references(arg))
    return ()


def made_buffers(instruction: Instruction) -> Iterator[tuple[str, str | None, TensorType | None]]:
    """The buffers that an instruction makes, each with that whose memory it is on, and its type where it is stated."""
    match instruction:
        case Allocate(buffer, type_, base) | MakeView(buffer, base, type_):
            yield buffer, base, type_
        case CallExtern(results=results, result_types=types):
            for number, name in enumerate(results):
                if name:
                    yield name, None, types[number] if types else None


def mentioned_buffers(instruction: Instruction) -> tuple[str, ...]:
    """The buffers that an instruction uses or makes, in order; releasing one is no use."""
    return (*used_buffers(instruction), *(name for name, _, _ in made_buffers(instruction)))


class KernelInfo(msgspec.Struct, frozen=True):
    """One entry point of the source: parameter buffers in order; launch metadata for Triton (grid, warps, ...).

    `function`: its name in the source where that is another: several kernels may be one function with other constants.
    `registers`: of a thread at most; 0: as many as the compiler likes.
    """

    name: str
    parameters: tuple[str, ...]
    grid: tuple[Dim, ...] = ()
    constants: tuple[tuple[str, int], ...] = ()
    num_warps: int = 4
    num_stages: int = 1
    function: str = ""
    registers: int = 0


class Choice(msgspec.Struct, frozen=True):
    """The instructions from `start` up to `stop`, and others of the same effect: whoever loads the unit takes the ones
    that run quicker on the device. Whatever is used later exists after each of them."""

    start: int
    stop: int
    alternatives: tuple[tuple[Instruction, ...], ...]


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One direction: one source and the wrapper instructions.

    `target`: whose source it is, by name: "cpp" (a translation unit), "triton" (a module), or another one that is
    registered where the unit is loaded.

    An input of a scalar type is an integer, the value of the size symbol of its name; every other symbol is the size or
    the stride of a dimension of an input.

    `written`: inputs whose memory the unit writes, as `Allocate.reuse`.

    `choices`: in order of their instructions, which do not overlap. `instructions` alone are the whole unit, too.

    `host_source`, `host_kernels`: of a Triton unit that also computes on the CPU, the C++ translation unit for that.

    `multiples`: symbols, and a power of two of which each was a multiple when the unit was made. Whoever makes machine
    code may have one version for sizes of which that is true, beside one for all.

    `isa`: the instruction set that the C++ is compiled for. "native": that of the machine that loads the unit; a level
    of x86-64: a machine that lacks it refuses the unit. `sanitize`: checks of the compiler that go into the C++.
    """

    target: str
    source: str
    kernels: tuple[KernelInfo, ...]
    inputs: tuple[str, ...]
    input_types: tuple[TensorType | ScalarType, ...]
    outputs: tuple[Arg, ...]
    instructions: tuple[Instruction, ...]
    host_source: str = ""
    host_kernels: tuple[KernelInfo, ...] = ()
    written: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    multiples: tuple[tuple[str, int], ...] = ()
    isa: Literal["native", "x86-64-v2", "x86-64-v3", "x86-64-v4"] = "native"
    sanitize: tuple[Literal["address", "undefined"], ...] = ()


class Program(msgspec.Struct, frozen=True, kw_only=True, tag="program", tag_field="document"):
    """Everything needed to run: `codegen.load(unit)` gives the callables, `aotgrad.bind(binding, ...)` the function."""

    binding: Binding
    forward: Unit
    backward: Unit | None = None
