"""R1 to R12 and R15: a Program."""

from __future__ import annotations

import itertools

import msgspec

from stagewire.graph import references
from stagewire.program import Allocate, CallExtern, Instruction, Launch, MakeView, Program, Release, Unit, used_buffers
from stagewire.types import TensorType
from stagewire.verify.bindings import QUALIFIED, Direction, check_directions
from stagewire.verify.fault import Fault, Faults, Path, duplicates
from stagewire.verify.graphs import call_faults
from stagewire.verify.types import behind, byte_size


def check_program(document: Program) -> Faults:
    return check_directions(document.binding, document.forward, document.backward, check_unit, _direction)


def _direction(name: str, unit: Unit) -> Direction:
    return Direction(name, unit.input_types, len(unit.outputs))


class _State:
    """Buffers that exist, with their type (None: made by an extern); buffers that are gone.

    bases: the memory that a view lies in. untouched: memory with elements that no launch and no call was given.
    """

    def __init__(self, unit: Unit) -> None:
        types = zip(unit.inputs, unit.input_types, strict=False)
        self.alive: dict[str, TensorType | None] = {n: type for n, type in types if isinstance(type, TensorType)}
        self.gone: set[str] = set()
        self.inputs = frozenset(unit.inputs)
        self.bases: dict[str, str] = {}
        self.allocated: dict[str, TensorType] = {}
        self.untouched: set[str] = set()
        self.written = frozenset(unit.written)
        self.parameters = {kernel.name: len(kernel.parameters) for kernel in (*unit.kernels, *unit.host_kernels)}


def check_unit(unit: Unit, path: Path = ()) -> Faults:
    if not unit.target.isidentifier():
        yield Fault("R11", f"{unit.target!r} is no name of a target", (*path, "target"))
    if len(unit.inputs) != len(unit.input_types):
        yield Fault("R6", f"{len(unit.inputs)} inputs, {len(unit.input_types)} types", (*path, "inputs"))
    for _, name in duplicates(unit.inputs):
        yield Fault("R6", f"the input {name!r} stands twice, or has no name", (*path, "inputs"))
    for position, name in duplicates(kernel.name for kernel in (*unit.kernels, *unit.host_kernels)):
        yield Fault("R1", f"two kernels are called {name!r}", (*path, "kernels", position))
    for name in unit.written:
        if name not in unit.inputs:
            yield Fault("R6", f"%{name} is written and no input", (*path, "written"))
    yield from _check_run(unit, path)
    yield from _check_choices(unit, path)


def _check_run(unit: Unit, path: Path) -> Faults:
    """The instructions, and the outputs behind them."""
    state = _State(unit)
    for position, instruction in enumerate(unit.instructions):
        yield from _check_instruction(instruction, state, (*path, "instructions", position))
    for output in unit.outputs:
        for name in references(output):
            if name not in state.alive:
                yield Fault("R5", f"the output %{name} does not exist at the end", (*path, "outputs"))
            elif state.bases.get(name, name) in state.untouched:
                yield Fault("R12", f"nothing writes the output %{name}", (*path, "outputs"))


def _check_choices(unit: Unit, path: Path) -> Faults:
    """R9; faults of an alternative are those that the unit has with it."""
    before = 0
    for position, choice in enumerate(unit.choices):
        where = (*path, "choices", position)
        if not before <= choice.start < choice.stop <= len(unit.instructions):
            yield Fault("R9", f"a choice from {choice.start} to {choice.stop}, behind {before}", where)
            continue
        before = choice.stop
        for number, instructions in enumerate(choice.alternatives):
            other = (*unit.instructions[: choice.start], *instructions, *unit.instructions[choice.stop :])
            with_it = msgspec.structs.replace(unit, instructions=other, choices=())
            for fault in _check_run(with_it, (*where, "alternatives", number)):
                yield Fault("R9", fault.message, (*where, "alternatives", number))


def _check_instruction(instruction: Instruction, state: _State, path: Path) -> Faults:
    for name in (instruction.buffer,) if isinstance(instruction, Release) else used_buffers(instruction):
        if name in state.gone and name not in state.alive:
            yield Fault("R3", f"%{name} is used after its end", path)
        elif name not in state.alive:
            yield Fault("R2", f"%{name} does not exist yet", path)
        if isinstance(instruction, (Launch, CallExtern)):
            state.untouched.discard(state.bases.get(name, name))
    match instruction:
        case Allocate(buffer, type, reuse):
            if reuse is not None:
                yield from _check_reuse(type, reuse, state, path)
                _end(state, reuse)
            yield from _define(state, buffer, type, path)
            state.allocated[buffer] = type
            if 0 not in type.shape:
                state.untouched.add(buffer)
        case MakeView(buffer, base, type):
            yield from _define(state, buffer, type, path)
            state.bases[buffer] = owner = state.bases.get(base, base)
            if owner in state.allocated and (size := behind(type, state.allocated[owner])) is not None:
                yield Fault("R15", f"%{buffer} ends behind the {size} bytes of %{owner}, or starts before", path)
        case Launch():
            yield from _check_launch(instruction, state, path)
        case CallExtern():
            if not QUALIFIED.fullmatch(instruction.target):
                yield Fault("R7", f"{instruction.target!r} is no qualified name", path)
            for message in call_faults(instruction.target, instruction.kwargs):
                yield Fault("R10", message, path)
            yield from _check_results(instruction, state, path)
        case Release(buffer):
            _end(state, buffer)


def _check_results(call: CallExtern, state: _State, path: Path) -> Faults:
    """R8, and the buffers that the call makes."""
    types = call.result_types or (None,) * len(call.results)
    if len(types) != len(call.results):
        yield Fault("R8", f"{len(types)} types for {len(call.results)} results", path)
    for name, type in itertools.zip_longest(call.results, types):
        if name:
            yield from _define(state, name, type, path)


def _define(state: _State, name: str, type: TensorType | None, path: Path) -> Faults:
    if not name or name in state.alive or name in state.gone:
        yield Fault("R2", f"the buffer {name!r} is made twice, or has no name", path)
    state.alive[name] = type


def _end(state: _State, name: str) -> None:
    state.alive.pop(name, None)
    state.gone.add(name)


def _check_reuse(type: TensorType, reuse: str, state: _State, path: Path) -> Faults:
    if reuse in state.inputs and reuse not in state.written:
        yield Fault("R4", f"%{reuse} is the caller's", path)
    old = state.alive.get(reuse)
    if old is None:
        return
    size, old_size = byte_size(type), byte_size(old)
    if size != old_size:
        yield Fault("R4", f"{size} bytes in place of the {old_size} of %{reuse}", path)


def _check_launch(launch: Launch, state: _State, path: Path) -> Faults:
    expected = state.parameters.get(launch.kernel)
    if expected is None:
        yield Fault("R1", f"there is no kernel {launch.kernel!r}; known: {', '.join(state.parameters)}", path)
    elif expected != len(launch.buffers):
        message = f"{launch.kernel} has {expected} parameters, the launch gives {len(launch.buffers)}"
        yield Fault("R1", message, path)
