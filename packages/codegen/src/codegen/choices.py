"""Units with a choice of instructions: how the others are written, how a choice is made, and instructions as a unit;
what it takes to record a unit, and what is bound of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import replace

from stagewire import program
from stagewire.types import TensorType


@dataclass(frozen=True)
class Replay:
    """Record what a unit launches on a CUDA device, and replay it from then on.

    in_place: numbers of inputs that are mostly the same memory at every call (parameters, buffers, constants): they are
        read where they are, and another place makes another recording. The others are copied.
    handed: numbers of outputs that a user gets, and may hold for long.
    alone: numbers of outputs that nobody sees but the unit of the other direction.
    sizes: of a unit with symbolic sizes, for how many sets of sizes recordings are kept.
    """

    in_place: frozenset[int] = frozenset()
    handed: frozenset[int] = frozenset()
    alone: frozenset[int] = frozenset()
    sizes: int = 32


class Bound(NamedTuple):
    """run: the callable. unit: says which unit without choices it runs now."""

    run: Callable[..., Any]
    unit: Callable[[], program.Unit]


def load_in_groups(
    units: Sequence[program.Unit], key: Callable[[program.Unit], Any], load: Callable[[Any, list[program.Unit]], Any]
) -> tuple[Bound, ...]:
    """What `load` makes of the units of each key, in the order of the units."""
    keys = [key(unit) for unit in units]
    found: dict[int, Bound] = {}
    for one in dict.fromkeys(keys):
        numbers = [number for number, other in enumerate(keys) if other == one]
        found |= zip(numbers, load(one, [units[number] for number in numbers]), strict=True)
    return tuple(found[number] for number in range(len(units)))


@dataclass(frozen=True)
class Templates:
    """Kernels that compute what a call and the launch behind it do, each with the launch of it on buffers of the graph.

    result: of the call. kept: whether it is used elsewhere. launched: whether there is a launch behind the call. lent:
    whether others take the memory of the result over later. fresh: buffers that may not take memory over here. made:
    an operand that a launch before the call makes; `prologued` compute it where they use it.
    """

    launches: tuple[program.Launch, ...]
    result: str
    kept: bool
    launched: bool
    lent: bool = False
    fresh: frozenset[str] = frozenset()
    made: str | None = None
    prologued: tuple[program.Launch, ...] = ()

    def instead_of(self, instructions: Sequence[program.Instruction]) -> tuple[tuple[program.Instruction, ...], ...]:
        """For each kernel, what it takes to launch it in the place of the call and the launch."""
        first = next((n + 1 for n, one in enumerate(instructions) if isinstance(one, program.Launch)), 0)
        ahead = first if self.made else 0
        making, rest = instructions[:ahead], instructions[ahead:]
        plain = self._around(rest, list(making), self.launches)
        if self.made is None:
            return plain
        # The operand is nowhere: its end is that of the memory that it would have taken over.
        (memory,) = (one for one in making if isinstance(one, program.Allocate) and one.buffer == self.made)
        ends = {program.Release(self.made): () if memory.reuse is None else (program.Release(memory.reuse),)}
        before = [one for one in making[:-1] if self.made not in program.mentioned_buffers(one)]
        others = [one for one in rest if not (isinstance(one, program.MakeView) and one.base == self.made)]
        prologued = self._around(others, before, self.prologued)
        return plain + tuple(tuple(new for one in way for new in ends.get(one, (one,))) for way in prologued)

    def _around(
        self, instructions: Sequence[program.Instruction], before: list[program.Instruction],
        launches: tuple[program.Launch, ...],
    ) -> tuple[tuple[program.Instruction, ...], ...]:  # fmt: skip
        taken: dict[str, str] = {}
        after: list[program.Instruction] = []
        for one in instructions:
            match one:
                case program.CallExtern(result_types=types):
                    assert types[0] is not None
                    if self.kept or self.lent:
                        (before if self.kept else after).append(program.Allocate(self.result, types[0]))
                case program.Allocate(buffer, type_, str(reuse)):
                    if reuse != self.result and buffer not in self.fresh:
                        before.append(one)
                        taken[reuse] = buffer
                        continue
                    before.append(program.Allocate(buffer, type_))
                    if reuse != self.result:
                        after.append(program.Release(reuse))
                case program.MakeView(base=base) | program.Release(base):
                    if self.kept or base != self.result:
                        (after if isinstance(one, program.Release) else before).append(one)
                case program.Allocate():
                    before.append(one)
        return tuple(
            (*before, program.Launch(one.kernel, tuple(taken.get(name, name) for name in one.buffers)), *after)
            for one in launches
        )


def chosen(unit: program.Unit, picks: Mapping[int, int]) -> program.Unit:
    """The unit without choices. picks: by the number of a choice, that of the alternative to take; none: as it stands.

    Kernels that are then launched by nobody are left out.
    """
    instructions: list[program.Instruction] = []
    position = 0
    for number, choice in enumerate(unit.choices):
        instructions += unit.instructions[position : choice.start]
        own = unit.instructions[choice.start : choice.stop]
        instructions += own if number not in picks else choice.alternatives[picks[number]]
        position = choice.stop
    instructions += unit.instructions[position:]
    launched = {one.kernel for one in instructions if isinstance(one, program.Launch)}
    kernels = tuple(info for info in unit.kernels if info.name in launched)
    return replace(unit, instructions=tuple(instructions), choices=(), kernels=kernels)


def alone_type(name: str, type_: TensorType, instructions: tuple[program.Instruction, ...]) -> TensorType:
    """The type of memory of its own; only windows count from where it begins in the whole unit."""
    is_base = any(isinstance(one, program.MakeView) and one.base == name for one in instructions)
    return replace(type_, requires_grad=False, storage_offset=type_.storage_offset if is_base else 0)


def given(instructions: tuple[program.Instruction, ...]) -> Iterator[str]:
    """Buffers that instructions use and do not make."""
    seen: set[str] = set()
    for one in instructions:
        for name in program.used_buffers(one):
            if name not in seen:
                yield name
            seen.add(name)
        seen.update(name for name, _, _ in program.made_buffers(one))
