"""One choice of a unit as a unit of its own, the same text wherever the same is to be chosen."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from stagewire.digest import digest
from stagewire.grad import Binding
from stagewire.graph import Ref, references
from stagewire.program import Allocate, CallExtern, Choice, Instruction, Launch, MakeView, Program, Release, Unit
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
        """Equal for equal calculations on memory of the same layout."""
        return digest(Program(binding=Binding(inputs=(), outputs=()), forward=self.unit))


def excerpt(unit: Unit, number: int, types: Mapping[str, TensorType]) -> Excerpt:
    """The choice `number` of a Triton unit. types: of the buffers of the unit.

    Inputs are what exists before; outputs what is written and exists afterwards.
    """
    choice = unit.choices[number]
    own = unit.instructions[choice.start : choice.stop]
    every = (*own, *(one for instructions in choice.alternatives for one in instructions))
    launched = dict.fromkeys(one.kernel for one in every if isinstance(one, Launch))
    infos = {info.name: info for info in unit.kernels}
    names = {name: f"kernel_{n}" for n, name in enumerate(launched)}
    functions = dict.fromkeys(infos[name].function or name for name in launched)
    called = {name: f"function_{n}" for n, name in enumerate(functions)}
    known = {info.function or info.name for info in unit.kernels}
    kernels = tuple(
        replace(infos[old], name=new, function=called[infos[old].function or old], parameters=_numbered(infos[old]))
        for old, new in names.items()
    )
    inputs = tuple(_given(own))
    made = _made(own)
    outputs = tuple(Ref(name) for name in made if not any(_ends(one, name) for one in own))
    rename = lambda instructions: tuple(_renamed(one, names) for one in instructions)  # noqa: E731
    alone = Unit(
        target="triton",
        source=_source(unit.source, known, called),
        kernels=kernels,
        inputs=inputs,
        input_types=tuple(_alone(name, types[name], own) for name in inputs),
        outputs=outputs,
        instructions=rename(own),
        written=tuple(one.reuse for one in own if isinstance(one, Allocate) and one.reuse in inputs),  # type: ignore
        choices=(Choice(0, len(own), tuple(rename(one) for one in choice.alternatives)),),
    )
    return Excerpt(alone, names, {name: infos[name].function or name for name in launched})


def _alone(name: str, type_: TensorType, instructions: tuple[Instruction, ...]) -> TensorType:
    """The type of memory of its own; only windows count from where it begins in the whole unit."""
    is_base = any(isinstance(one, MakeView) and one.base == name for one in instructions)
    return type_ if is_base else replace(type_, storage_offset=0)


def _numbered(info: object) -> tuple[str, ...]:
    return tuple(f"p{n}" for n in range(len(info.parameters)))  # type: ignore[attr-defined]


def _given(instructions: tuple[Instruction, ...]) -> Iterator[str]:
    """Buffers that instructions use and do not make."""
    seen: set[str] = set()
    for one in instructions:
        for name in _used(one):
            if name not in seen:
                yield name
            seen.add(name)
        seen.update(_made((one,)))


def _used(one: Instruction) -> tuple[str, ...]:
    match one:
        case Allocate(reuse=str(reuse)):
            return (reuse,)
        case MakeView(base=base):
            return (base,)
        case Launch(buffers=buffers):
            return buffers
        case CallExtern(args=args, kwargs=kwargs):
            return tuple(name for arg in (*args, *kwargs.values()) for name in references(arg))
    return ()


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


def _renamed(one: Instruction, names: Mapping[str, str]) -> Instruction:
    return replace(one, kernel=names[one.kernel]) if isinstance(one, Launch) else one


def _source(source: str, kernels: set[str], called: Mapping[str, str]) -> str:
    """The functions that are `called` something, by that name, and all that are no kernels."""
    lines, kept, before = source.splitlines(), [], 0
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name in kernels:
            start = min(one.lineno for one in (node, *node.decorator_list)) - 1
            kept += lines[before:start]
            if node.name in called:
                text = "\n".join(lines[start : node.end_lineno])
                kept.append(text.replace(f"def {node.name}(", f"def {called[node.name]}(", 1))
            before = node.end_lineno or start
    return "\n".join([*kept, *lines[before:]]) + "\n"
