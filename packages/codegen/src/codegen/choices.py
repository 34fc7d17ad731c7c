"""Units with a choice of instructions: how the others are written, how a choice is made, and a choice as a unit of its
own, the same text wherever the same is to be chosen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from stagewire import program
from stagewire.codec import decode, encode
from stagewire.digest import digest
from stagewire.grad import Binding
from stagewire.graph import Ref
from stagewire.types import TensorType


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
        ahead = (
            next((n + 1 for n, one in enumerate(instructions) if isinstance(one, program.Launch)), 0)
            if self.made
            else 0
        )
        making, rest = instructions[:ahead], instructions[ahead:]
        plain = self._around(rest, list(making), [], self.launches)
        if self.made is None:
            return plain
        before = [one for one in making if not isinstance(one, program.Launch) and self.made not in made_or_seen(one)]
        ending = [one for one in making if isinstance(one, program.Allocate) and one.buffer == self.made]
        with_operand = [one for one in rest if not (isinstance(one, program.MakeView) and one.base == self.made)]
        return plain + tuple(map(self._without_operand, self._around(with_operand, before, ending, self.prologued)))

    def _without_operand(self, instructions: tuple[program.Instruction, ...]) -> tuple[program.Instruction, ...]:
        """The operand is nowhere: its end is that of the memory that it would have taken over."""
        (place,) = (one for one in instructions if isinstance(one, program.Allocate) and one.buffer == self.made)
        end = () if place.reuse is None else (program.Release(place.reuse),)
        kept: list[program.Instruction] = []
        for one in instructions:
            kept += end if one == program.Release(place.buffer) else [] if one is place else [one]
        return tuple(kept)

    def _around(
        self,
        instructions: Sequence[program.Instruction],
        before: list[program.Instruction],
        after: list[program.Instruction],
        launches: tuple[program.Launch, ...],
    ) -> tuple[tuple[program.Instruction, ...], ...]:
        taken: dict[str, str] = {}
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


def made_or_seen(one: program.Instruction) -> tuple[str, ...]:
    """What an instruction that computes nothing makes, and on what."""
    match one:
        case program.Allocate(buffer):
            return (buffer,)
        case program.MakeView(buffer, base):
            return (buffer, base)
    return ()


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


class Excerpt(NamedTuple):
    """`unit` has one choice, of all its instructions.

    names: of its kernels, by what they are called in the whole unit; functions: what these are there.
    """

    unit: program.Unit
    names: dict[str, str]
    functions: dict[str, str]

    @property
    def key(self) -> str:
        """Equal for equal calculations on memory of the same layout, on whichever device of a kind."""
        data = encode(program.Program(binding=Binding(inputs=(), outputs=()), forward=self.unit), "json")
        return digest(decode(re.sub(rb'"cuda:\d+"', b'"cuda"', data)))


class Excerpts:
    """The choices of a Triton unit. types: of its buffers."""

    def __init__(self, unit: program.Unit, types: Mapping[str, TensorType]) -> None:
        self.unit, self.types = unit, types
        self.infos = {info.name: info for info in unit.kernels}
        self.shared, self.texts = _functions(unit.source, {info.function or info.name for info in unit.kernels})

    def of(self, number: int) -> Excerpt:
        """One choice. Inputs are what exists before; outputs what is written and exists afterwards."""
        choice = self.unit.choices[number]
        own = self.unit.instructions[choice.start : choice.stop]
        every = (*own, *(one for instructions in choice.alternatives for one in instructions))
        launched = tuple(dict.fromkeys(one.kernel for one in every if isinstance(one, program.Launch)))
        names = {name: f"kernel_{n}" for n, name in enumerate(launched)}
        functions = {name: self.infos[name].function or name for name in launched}
        called = {name: f"function_{n}" for n, name in enumerate(dict.fromkeys(functions.values()))}
        kernels = tuple(
            replace(
                self.infos[old],
                name=new,
                function=called[functions[old]],
                parameters=tuple(f"p{n}" for n in range(len(self.infos[old].parameters))),
            )
            for old, new in names.items()
        )
        texts = [self.texts[old].replace(f"def {old}(", f"def {new}(", 1) for old, new in called.items()]
        inputs = tuple(given(own))
        outputs = tuple(Ref(name) for name in _made(own) if not any(_ends(one, name) for one in own))
        alone = program.Unit(
            target="triton",
            source="\n\n".join([self.shared, *texts]),
            kernels=kernels,
            inputs=inputs,
            input_types=tuple(alone_type(name, self.types[name], own) for name in inputs),
            outputs=outputs,
            instructions=_renamed(own, names),
            written=tuple(one.reuse for one in own if isinstance(one, program.Allocate) and one.reuse in inputs),  # type: ignore
            choices=(program.Choice(0, len(own), tuple(_renamed(one, names) for one in choice.alternatives)),),
        )
        return Excerpt(alone, names, functions)


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
        seen.update((one.buffer,) if isinstance(one, program.MakeView) else _made((one,)))


def _made(instructions: tuple[program.Instruction, ...]) -> list[str]:
    """Memory of their own, or taken over, that instructions make."""
    made: list[str] = []
    for one in instructions:
        match one:
            case program.Allocate(buffer):
                made.append(buffer)
            case program.CallExtern(results=results):
                made += [name for name in results if name]
    return made


def _ends(one: program.Instruction, name: str) -> bool:
    match one:
        case program.Allocate(reuse=reuse):
            return reuse == name
        case program.Release(buffer):
            return buffer == name
    return False


def _renamed(
    instructions: tuple[program.Instruction, ...], names: Mapping[str, str]
) -> tuple[program.Instruction, ...]:
    """The instructions with their kernels called otherwise."""
    return tuple(
        replace(one, kernel=names[one.kernel]) if isinstance(one, program.Launch) else one for one in instructions
    )


def _functions(source: str, kernels: set[str]) -> tuple[str, dict[str, str]]:
    """A module cut in what is not a kernel, and the text of each kernel."""
    lines, rest, texts, before = source.splitlines(), [], {}, 0
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name in kernels:
            start = min(one.lineno for one in (node, *node.decorator_list)) - 1
            rest += lines[before:start]
            before = node.end_lineno or start
            texts[node.name] = "\n".join(lines[start:before]) + "\n"
    rest += lines[before:]
    return "\n".join(rest).rstrip() + "\n", texts
