"""Units of several GPUs, run as units of one GPU each, in turns.

partition ::= instruction*      in a row, on memory of one GPU (and of the CPU): run by the native executor
            | call            between two devices, by ATen, which lets the streams of both wait for each other

Where a unit is to be recorded, each partition of the first kind has recordings of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from absint.schema import record_of
from absint.targets import find
from codegen.choices import Replay, alone_type, given
from codegen.runtime.arguments import Environment, Symbols, inputs_of
from codegen.runtime.python_wrapper import PythonWrapper
from stagewire.graph import DeviceArg, Ref, references
from stagewire.program import (
    Allocate,
    CallExtern,
    Instruction,
    Launch,
    Release,
    Unit,
    made_buffers,
    mentioned_buffers,
)
from stagewire.symbols import symbol_places
from stagewire.types import ScalarType, TensorType

Run = Callable[..., Any]


def partitions_of(unit: Unit) -> tuple[Unit, ...]:
    """Units that do in turns what a unit without choices does, each on the values of symbols, what was there before and
    what those before it have made; none where a call does not state what it makes."""
    inputs = zip(unit.inputs, unit.input_types, strict=True)
    types = {name: type_ for name, type_ in inputs if isinstance(type_, TensorType)}
    allocated: set[str] = set()
    for one in unit.instructions:
        for name, base, type_ in made_buffers(one):
            if type_ is None:
                return ()
            types[name] = type_
            if isinstance(one, Allocate) or base in allocated:
                allocated.add(name)
    found: list[Unit] = []
    later = {name for output in unit.outputs for name in references(output)}
    for own in reversed(_cut(unit.instructions, types)):
        part = _partition(unit, own, types, allocated, later)
        later |= set(part.inputs)
        found.append(part)
    return tuple(reversed(found))


def _cut(instructions: Sequence[Instruction], types: dict[str, TensorType]) -> list[tuple[Instruction, ...]]:
    found: list[list[Instruction]] = [[]]
    here: set[str] = set()
    for one in instructions:
        devices = _devices(one, types)
        if len(here | devices) > 1:
            found.append([])
            here = set()
        found[-1].append(one)
        here |= devices
    return [tuple(own) for own in found if own]


def _devices(one: Instruction, types: dict[str, TensorType]) -> set[str]:
    """The GPUs that an instruction has to do with."""
    found = {types[name].device for name in mentioned_buffers(one) if name in types}
    if isinstance(one, CallExtern):
        found |= {arg.name for arg in (*one.args, *one.kwargs.values()) if isinstance(arg, DeviceArg)}
    return found - {"cpu"}


def _partition(
    unit: Unit, own: tuple[Instruction, ...], types: dict[str, TensorType], allocated: set[str], later: set[str]
) -> Unit:
    """Instructions as a unit. allocated: memory that kernels may write, whoever has taken it."""
    made = [name for one in own for name, _, _ in made_buffers(one)]
    symbols = symbol_places(inputs_of(unit))
    inputs = tuple(name for name in given(own) if name not in symbols)
    own = tuple(one for one in own if not isinstance(one, Release) or one.buffer in made)
    launched = {one.kernel for one in own if isinstance(one, Launch)}
    on_host = tuple(info for info in unit.host_kernels if info.name in launched)
    written = {*unit.written, *_written(own, allocated)}
    return replace(
        unit,
        kernels=tuple(info for info in unit.kernels if info.name in launched),
        inputs=(*symbols, *inputs),
        input_types=(*[ScalarType("int")] * len(symbols), *(alone_type(name, types[name], own) for name in inputs)),
        outputs=tuple(Ref(name) for name in made if name in later),
        instructions=own,
        host_source=unit.host_source if on_host else "",
        host_kernels=on_host,
        written=tuple(name for name in inputs if name in written),
    )


def _written(own: Sequence[Instruction], allocated: set[str]) -> Iterator[str]:
    """Buffers that instructions may write; a kernel does not say which of its buffers it does."""
    for one in own:
        match one:
            case Launch(buffers=buffers):
                yield from allocated.intersection(buffers)
            case Allocate(reuse=str(reuse)):
                yield reuse
            case CallExtern(target, args, kwargs):
                operator = find(target)
                record = record_of(operator) if hasattr(operator, "_schema") else None
                for number, name in (*record.writes, *record.hidden_writes) if record else ():
                    yield from references(args[number] if 0 <= number < len(args) else kwargs.get(name))


def replay_of(partition: Unit, unit: Unit, replay: Replay, others: set[str]) -> Replay:
    """How a partition is recorded of a unit that is recorded so. others: the inputs of other partitions."""
    stays = {unit.inputs[number] for number in replay.in_place}
    numbers: dict[str, set[int]] = {}
    for number, output in enumerate(unit.outputs):
        if isinstance(output, Ref) and output.name not in others:
            numbers.setdefault(output.name, set()).add(number)

    def outputs(among: frozenset[int]) -> frozenset[int]:
        names = [name for output in partition.outputs for name in references(output)]
        return frozenset(k for k, name in enumerate(names) if name in numbers and numbers[name] <= among)

    in_place = frozenset(k for k, name in enumerate(partition.inputs) if name in stays)
    return Replay(in_place, outputs(replay.handed), outputs(replay.alone), replay.sizes)


class _Turn(NamedTuple):
    """A partition, and what runs it.

    last: which of its inputs nobody needs any more
    makes: the names of what it returns
    writes: whether it writes an input of the unit
    """

    unit: Unit
    run: Run
    last: tuple[str, ...]
    makes: tuple[str, ...]
    writes: bool


class InTurns(PythonWrapper):
    """Runs the partitions of a unit: `runs`, in order. An empty list runs nothing: each gives back its memory."""

    def __init__(self, unit: Unit, partitions: Sequence[Unit], runs: Sequence[Run]) -> None:
        super().__init__(unit, {})
        self.turns: list[_Turn] = []
        later = {name for output in unit.outputs for name in references(output)}
        for one, run in reversed(tuple(zip(partitions, runs, strict=True))):
            makes = tuple(name for output in one.outputs for name in references(output))
            writes = not set(one.written).isdisjoint(unit.written)
            self.turns.insert(0, _Turn(one, run, tuple(set(one.inputs) - later), makes, writes))
            later |= set(one.inputs)

    def recorded(self, replay: Replay, record: Callable[[Unit, Run, Replay], Run]) -> InTurns:
        """The same of partitions that `record` makes of each, of what runs it, and of how it is to be recorded."""
        partitions = [turn.unit for turn in self.turns]
        runs = []
        for one, run, *_ in self.turns:
            others = {name for other in partitions if other is not one for name in other.inputs}
            runs.append(record(one, run, replay_of(one, self.unit, replay, others)))
        return InTurns(self.unit, partitions, runs)

    def give_back(self) -> None:
        for turn in self.turns:
            if turn.unit.inputs:
                turn.run([])

    def steps(self, environment: Environment, symbols: Symbols) -> Iterator[bool]:
        environment.update(symbols)
        for turn in self.turns:
            operands = [environment[name] for name in turn.unit.inputs]
            for name in turn.last:
                del environment[name]
            environment.update(zip(turn.makes, turn.run(operands) if operands else turn.run(), strict=True))
            yield turn.writes
