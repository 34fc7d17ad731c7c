"""One choice of a unit as a unit of its own, the same text wherever the same is to be chosen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from stagewire.codec import decode, encode
from stagewire.digest import digest
from stagewire.grad import Binding
from stagewire.graph import Ref
from stagewire.program import (
    Allocate,
    CallExtern,
    Choice,
    Instruction,
    Launch,
    MakeView,
    Program,
    Release,
    Unit,
    used_buffers,
)
from stagewire.types import TensorType


class Excerpt(NamedTuple):
    """`unit` has one choice, of all its instructions.

    names: of its kernels, by what they are called in the whole unit; functions: what these are there.
    """

    unit: Unit
    names: dict[str, str]
    functions: dict[str, str]

    @property
    def key(self) -> str:
        """Equal for equal calculations on memory of the same layout, on whichever device of a kind."""
        data = encode(Program(binding=Binding(inputs=(), outputs=()), forward=self.unit), "json")
        return digest(decode(re.sub(rb'"cuda:\d+"', b'"cuda"', data)))


class Excerpts:
    """The choices of a Triton unit. types: of its buffers."""

    def __init__(self, unit: Unit, types: Mapping[str, TensorType]) -> None:
        self.unit, self.types = unit, types
        self.infos = {info.name: info for info in unit.kernels}
        self.shared, self.texts = _functions(unit.source, {info.function or info.name for info in unit.kernels})

    def of(self, number: int) -> Excerpt:
        """One choice. Inputs are what exists before; outputs what is written and exists afterwards."""
        choice = self.unit.choices[number]
        own = self.unit.instructions[choice.start : choice.stop]
        every = (*own, *(one for instructions in choice.alternatives for one in instructions))
        launched = tuple(dict.fromkeys(one.kernel for one in every if isinstance(one, Launch)))
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
        alone = Unit(
            target="triton",
            source="\n\n".join([self.shared, *texts]),
            kernels=kernels,
            inputs=inputs,
            input_types=tuple(alone_type(name, self.types[name], own) for name in inputs),
            outputs=outputs,
            instructions=_renamed(own, names),
            written=tuple(one.reuse for one in own if isinstance(one, Allocate) and one.reuse in inputs),  # type: ignore
            choices=(Choice(0, len(own), tuple(_renamed(one, names) for one in choice.alternatives)),),
        )
        return Excerpt(alone, names, functions)


def alone_type(name: str, type_: TensorType, instructions: tuple[Instruction, ...]) -> TensorType:
    """The type of memory of its own; only windows count from where it begins in the whole unit."""
    is_base = any(isinstance(one, MakeView) and one.base == name for one in instructions)
    return replace(type_, requires_grad=False, storage_offset=type_.storage_offset if is_base else 0)


def given(instructions: tuple[Instruction, ...]) -> Iterator[str]:
    """Buffers that instructions use and do not make."""
    seen: set[str] = set()
    for one in instructions:
        for name in used_buffers(one):
            if name not in seen:
                yield name
            seen.add(name)
        seen.update((one.buffer,) if isinstance(one, MakeView) else _made((one,)))


def _made(instructions: tuple[Instruction, ...]) -> list[str]:
    """Memory of their own, or taken over, that instructions make."""
    made: list[str] = []
    for one in instructions:
        match one:
            case Allocate(buffer):
                made.append(buffer)
            case CallExtern(results=results):
                made += [name for name in results if name]
    return made


def _ends(one: Instruction, name: str) -> bool:
    match one:
        case Allocate(reuse=reuse):
            return reuse == name
        case Release(buffer):
            return buffer == name
    return False


def _renamed(instructions: tuple[Instruction, ...], names: Mapping[str, str]) -> tuple[Instruction, ...]:
    """The instructions with their kernels called otherwise."""
    return tuple(replace(one, kernel=names[one.kernel]) if isinstance(one, Launch) else one for one in instructions)


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
