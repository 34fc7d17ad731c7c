"""Units with a choice of instructions: how the others are written, and how a choice is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from stagewire.program import Allocate, CallExtern, Instruction, Launch, MakeView, Release, Unit


@dataclass(frozen=True)
class Templates:
    """Kernels that compute what a call and the launch behind it do, each with the launch of it on buffers of the graph.

    result: of the call. kept: whether it is used elsewhere. launched: whether there is a launch behind the call. lent:
    whether others take the memory of the result over later. fresh: buffers that may not take memory over here. made:
    an operand that a launch before the call makes; `prologued` compute it where they use it.
    """

    launches: tuple[Launch, ...]
    result: str
    kept: bool
    launched: bool
    lent: bool = False
    fresh: frozenset[str] = frozenset()
    made: str | None = None
    prologued: tuple[Launch, ...] = ()

    def instead_of(self, instructions: Sequence[Instruction]) -> tuple[tuple[Instruction, ...], ...]:
        """For each kernel, what it takes to launch it in the place of the call and the launch."""
        ahead = next((n + 1 for n, one in enumerate(instructions) if isinstance(one, Launch)), 0) if self.made else 0
        making, rest = instructions[:ahead], instructions[ahead:]
        plain = self._around(rest, list(making), [], self.launches)
        if self.made is None:
            return plain
        before = [one for one in making if not isinstance(one, Launch) and self.made not in made_or_seen(one)]
        ending = [one for one in making if isinstance(one, Allocate) and one.buffer == self.made]
        with_operand = [one for one in rest if not (isinstance(one, MakeView) and one.base == self.made)]
        return plain + tuple(map(self._without_operand, self._around(with_operand, before, ending, self.prologued)))

    def _without_operand(self, instructions: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        """The operand is nowhere: its end is that of the memory that it would have taken over."""
        (place,) = (one for one in instructions if isinstance(one, Allocate) and one.buffer == self.made)
        end = () if place.reuse is None else (Release(place.reuse),)
        kept: list[Instruction] = []
        for one in instructions:
            kept += end if one == Release(place.buffer) else [] if one is place else [one]
        return tuple(kept)

    def _around(
        self,
        instructions: Sequence[Instruction],
        before: list[Instruction],
        after: list[Instruction],
        launches: tuple[Launch, ...],
    ) -> tuple[tuple[Instruction, ...], ...]:
        taken: dict[str, str] = {}
        for one in instructions:
            match one:
                case CallExtern(result_types=types):
                    assert types[0] is not None
                    if self.kept or self.lent:
                        (before if self.kept else after).append(Allocate(self.result, types[0]))
                case Allocate(buffer, type_, str(reuse)):
                    if reuse != self.result and buffer not in self.fresh:
                        before.append(one)
                        taken[reuse] = buffer
                        continue
                    before.append(Allocate(buffer, type_))
                    if reuse != self.result:
                        after.append(Release(reuse))
                case MakeView(base=base) | Release(base):
                    if self.kept or base != self.result:
                        (after if isinstance(one, Release) else before).append(one)
                case Allocate():
                    before.append(one)
        return tuple(
            (*before, Launch(one.kernel, tuple(taken.get(name, name) for name in one.buffers)), *after)
            for one in launches
        )


def made_or_seen(one: Instruction) -> tuple[str, ...]:
    """What an instruction that computes nothing makes, and on what."""
    match one:
        case Allocate(buffer):
            return (buffer,)
        case MakeView(buffer, base):
            return (buffer, base)
    return ()


def chosen(unit: Unit, picks: Mapping[int, int]) -> Unit:
    """The unit without choices. picks: by the number of a choice, that of the alternative to take; none: as it stands.

    Kernels that are then launched by nobody are left out.
    """
    instructions: list[Instruction] = []
    position = 0
    for number, choice in enumerate(unit.choices):
        instructions += unit.instructions[position : choice.start]
        own = unit.instructions[choice.start : choice.stop]
        instructions += own if number not in picks else choice.alternatives[picks[number]]
        position = choice.stop
    instructions += unit.instructions[position:]
    launched = {one.kernel for one in instructions if isinstance(one, Launch)}
    kernels = tuple(info for info in unit.kernels if info.name in launched)
    return replace(unit, instructions=tuple(instructions), choices=(), kernels=kernels)
