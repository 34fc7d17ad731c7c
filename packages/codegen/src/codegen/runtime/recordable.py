"""A unit as what recordings are made of: its inputs, its outputs and what is launched, at given sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

from msgspec.structs import replace

from codegen.choices import Bound, Replay, chosen
from codegen.runtime.arguments import Symbols, closure, inputs_of, operator, resolve, sizes
from codegen.runtime.device_partitions import partitions_of
from codegen.runtime.memory_kinds import device_of, plan_memory, single_device, stated
from codegen.runtime.recording import Destinations, with_destinations
from codegen.runtime.required_cubins import useful
from codegen.runtime.result_memory import Kind
from codegen.torch_capabilities import RECORDING, TORCH
from stagewire.expr import evaluate
from stagewire.graph import DeviceArg, Ref
from stagewire.program import CallExtern, Launch, Unit, used_buffers
from stagewire.substitution import replace_symbols
from stagewire.symbols import symbol_places
from stagewire.types import TensorType

Loader = Callable[[Unit], Callable[..., Any]]


FEWEST = 6
"""Launches and calls from which a recording is worth what it costs; fewer are started in less time than a replay."""
SEVERAL = "it works on several devices"


def obstacle(unit: Unit) -> str | None:
    """Why a unit is not recorded, as far as the document says; None where it can be, or a partition of it."""
    if is_on_cpu(unit):
        return "it computes on the CPU"
    if is_short(unit):
        return "it launches so few kernels that a replay takes longer"
    if missing := [TORCH.rows[name].path for name in RECORDING if TORCH.lacks(name)]:
        return f"this torch has no {', '.join(missing)}"
    device = single_device(unit)
    if device is None:
        found = [obstacle(one) for one in partitions_of(chosen(unit, {})) if single_device(one) is not None]
        return None if None in found else next(iter(found), SEVERAL)
    if any(type_.device != device for type_ in stated(unit)):
        return "it computes on the CPU beside"
    for one in unit.instructions:
        if isinstance(one, CallExtern):
            types = one.result_types or (None,) * len(one.results)
            if any(name and type_ is None for name, type_ in zip(one.results, types, strict=False)):
                return f"{one.target} has results of a size that depends on data"
    return None


CPU = DeviceArg("cpu")


def host_draws(unit: Unit) -> tuple[CallExtern, ...]:
    """Calls of a GPU's unit that draw random numbers on the CPU which nothing reads: they are done at each replay."""
    if device_of(unit) == "cpu":
        return ()
    calls = (one for one in unit.instructions if isinstance(one, CallExtern))
    dead = (one for one in calls if not any(one.results) and not used_buffers(one))
    return tuple(one for one in dead if one.kwargs.get("device", CPU) == CPU)


def is_on_cpu(unit: Unit) -> bool:
    """Whether a unit computes on the CPU alone."""
    return all(type_.device == "cpu" for type_ in stated(unit))


def is_short(unit: Unit) -> bool:
    """Whether a unit has too few launches to be recorded."""
    return sum(isinstance(one, Launch | CallExtern) for one in unit.instructions) < FEWEST


class Output(NamedTuple):
    """What an output is: a literal; memory of input number `input` (itself, or a window on it); else a result."""

    is_result: bool = False
    input: int | None = None
    window: tuple[TensorType, int] | None = None
    literal: Any = None
    may_copy: bool = False


class Recordable:
    """A unit that is recorded. run: launches it. symbols: of its sizes, by name.

    load: binds another unit of the same source.
    """

    def __init__(self, unit: Unit, bound: Bound, replay: Replay, load: Loader) -> None:
        self.unit, self.run = unit, bound.run
        self.symbols = tuple(symbol_places(inputs_of(unit)))
        self._host_draws = [closure(one, operator(one.target)) for one in host_draws(unit)]
        self._current, self._load, self._replay = bound.unit, load, replay
        self._made: list[tuple[Unit, bool, Destinations, Callable[..., Any]]] = []

    @cached_property
    def tensors(self) -> tuple[int, ...]:
        """The numbers of the inputs that are tensors; others are the values of symbols."""
        return tuple(number for number, type_ in enumerate(self.unit.input_types) if isinstance(type_, TensorType))

    def in_place(self, symbols: Symbols) -> frozenset[int]:
        """The inputs that are read where they are, those that are written and those that repeat elements among them:
        nothing can be copied into such a tensor."""
        found = {number for number in self.tensors if number in self._replay.in_place}
        for number in self.tensors:
            type_ = replace_symbols(self.unit.input_types[number], symbols)  # type: ignore[arg-type]
            repeats = any(step == 0 and size != 1 for step, size in zip(type_.stride, type_.shape, strict=True))
            if repeats or self.unit.inputs[number] in self.unit.written:
                found.add(number)
        return frozenset(found)

    def outputs(self, symbols: Symbols) -> tuple[Output, ...]:
        """What each output is where the symbols have these values."""
        unit, homes = self.unit, self._homes
        names = [output.name if isinstance(output, Ref) else None for output in unit.outputs]
        roots = Counter(homes.of[name].root for name in names if name in homes.of)
        numbers = {name: number for number, name in enumerate(unit.inputs)}
        found = []
        for place, (output, name) in enumerate(zip(unit.outputs, names, strict=True)):
            if name is None:
                found.append(Output(literal=resolve(output, {}, symbols)))
            elif name in numbers:
                found.append(Output(input=numbers[name]))
            elif (root := homes.of[name].root) in numbers:
                type_ = homes.types[name]
                assert type_ is not None
                window = replace_symbols(type_, symbols), evaluate(homes.distance[name], symbols)
                found.append(Output(input=numbers[root], window=window))
            else:
                found.append(Output(is_result=True, may_copy=place in self._replay.handed and roots[root] == 1))
        return tuple(found)

    def advance_host_generators(self, symbols: Symbols) -> None:
        """Do what a recording leaves out: move the random numbers of the CPU on."""
        for function, _, dims in self._host_draws:
            function(*sizes(dims, symbols))

    def kind(self, outputs: frozenset[int]) -> Kind:
        """What memory these outputs, which share it, are to lie in."""
        if outputs <= self._replay.alone:
            return "saved"
        return "result" if outputs <= self._replay.handed else "exact"

    @cached_property
    def _homes(self) -> Any:
        return plan_memory(self.unit)

    def target(self, symbols: Symbols) -> tuple[Destinations, Callable[..., Any], bool]:
        """What is recorded, at these sizes: the unit as it runs now, made over to take memory for its results; what
        runs it; whether its recordings use the shared pool.

        Machine code for sizes that are multiples is taken where they are; no other code is made while recording.
        """
        unit = self._current()
        plan, run = self._planned(unit, all(symbols[name] % number == 0 for name, number in self._multiples))
        plan = plan.at(symbols)
        return plan, run, plan.shares(symbols)

    def _planned(self, unit: Unit, is_even: bool) -> tuple[Destinations, Callable[..., Any]]:
        """A unit that takes memory for its results, made once, and what runs it."""
        for known, even, plan, run in self._made:
            if known is unit and even == is_even:
                return plan, run
        left_out = host_draws(unit)
        launched = tuple(one for one in unit.instructions if one not in left_out)
        multiples = self._multiples if is_even else ()
        plan = with_destinations(replace(unit, multiples=multiples, instructions=launched))
        run = self._load(plan.unit)
        self._made.append((unit, is_even, plan, run))
        return plan, run

    @cached_property
    def _multiples(self) -> tuple[tuple[str, int], ...]:
        return useful(self._current()) if self.unit.multiples else ()
