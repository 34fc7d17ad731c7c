"""A unit made over so that its results lie where the caller says.

unit' ::= unit, with memory for results behind its inputs and no instruction that takes such memory

A buffer that an output lies in becomes an input where the unit took memory for it itself; products that make one are
called with `out=`. What a library takes memory for stays the library's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from msgspec.structs import replace

from codegen.runtime.arguments import Symbols, with_values
from codegen.runtime.externs import WRITES_ITS_RESULT
from codegen.runtime.memory_kinds import plan_memory, span
from codegen.runtime.python_wrapper import at_distance, repeats_once
from stagewire.expr import Dim, evaluate
from stagewire.graph import Ref
from stagewire.program import Allocate, CallExtern, Instruction, MakeView, Release, Unit, made_buffers
from stagewire.types import TensorType


class Window(NamedTuple):
    """An output in the memory of `root`: a tensor of `type`, `distance` bytes after the first element of that."""

    root: str
    type: TensorType
    distance: Dim


class Destinations(NamedTuple):
    """unit: made over. given: the memory that it takes behind its inputs, by what is its root in the unit.

    windows: by the number of an output that lies in memory of a library, what it is of that. library: these roots.
    outputs: the numbers of the outputs in each of both kinds of roots. Types and distances are in the symbols of the
    unit's sizes, until `at` gives these values.
    """

    unit: Unit
    given: Mapping[str, TensorType]
    windows: Mapping[int, Window]
    library: Mapping[str, TensorType]
    outputs: Mapping[str, frozenset[int]]

    def at(self, symbols: Symbols) -> Destinations:
        """The same where the symbols have these values; the unit is left as it is."""
        given, library = (
            {name: with_values(type_, symbols) for name, type_ in types.items()} for types in (self.given, self.library)
        )
        windows = {
            number: Window(root, with_values(type_, symbols), evaluate(distance, symbols))
            for number, (root, type_, distance) in self.windows.items()
        }
        return self._replace(given=given, windows=windows, library=library)

    def moved(self, made: Sequence[object], memory: Mapping[str, torch.Tensor]) -> list[object]:
        """The outputs of a run, those of libraries copied into `memory` (for each root a tensor of its type)."""
        found = list(made)
        for number, (root, type_, distance) in self.windows.items():
            output = found[number]
            assert isinstance(output, torch.Tensor)
            window = at_distance(memory[root], type_, distance)  # type: ignore[arg-type]
            once = repeats_once(window)
            window[once].copy_(output[once])
            found[number] = window
        return found


def with_destinations(unit: Unit) -> Destinations:
    """Make a unit over that has no choices.

    >>> # outputs: c = a @ b, which `aten.mm.default` makes, and becomes an input that `aten.mm.out` writes
    """
    homes = plan_memory(unit)
    outputs = [(number, output.name) for number, output in enumerate(unit.outputs) if isinstance(output, Ref)]
    roots = dict.fromkeys(homes.of[name].root for _, name in outputs)
    fresh = tuple(name for name in roots if homes.of[name].kind == "fresh")
    windows = {
        number: Window(homes.of[name].root, homes.types[name], homes.distance[name])  # type: ignore[arg-type]
        for number, name in outputs
        if homes.of[homes.of[name].root].kind == "library"
    }
    types = {name: homes.types[name] for name in (*fresh, *(one.root for one in windows.values()))}
    given = {name: types[name] for name in fresh}
    made_over = replace(
        unit,
        inputs=(*unit.inputs, *fresh),
        input_types=(*unit.input_types, *given.values()),  # type: ignore[arg-type]
        written=(*unit.written, *fresh),
        instructions=tuple(_instructions(unit.instructions, frozenset(fresh))),
    )
    library = {one.root: types[one.root] for one in windows.values()}
    numbers = {root: frozenset(n for n, name in outputs if homes.of[name].root == root) for root in types}
    return Destinations(made_over, given, windows, library, numbers)  # type: ignore[arg-type]


def _instructions(instructions: Sequence[Instruction], given: frozenset[str]) -> Iterator[Instruction]:
    for one in instructions:
        match one:
            case Allocate(buffer, _, None) | Release(buffer) if buffer in given:
                continue
            case CallExtern(target, args, kwargs, results) if given.intersection(results):
                assert target in WRITES_ITS_RESULT
                name = f"{target.removesuffix('.default')}.out"
                yield CallExtern(name, args, {**kwargs, "out": Ref(results[0])}, ())
            case _:
                yield one


def bytes_made(unit: Unit, symbols: Symbols) -> int:
    """Of all that a unit makes: about what its kernels write."""
    every = (made for one in unit.instructions if not isinstance(one, MakeView) for made in made_buffers(one))
    return sum(evaluate(span(type_), symbols) for _, _, type_ in every if type_ is not None)
