"""Strategies for the units of a program: kernels by name, and instructions over buffers that exist."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from stagewire.graph import Arg, Ref
from stagewire.program import Allocate, CallExtern, Choice, Instruction, KernelInfo, Launch, MakeView, Release, Unit
from stagewire.testing.basics import (
    Names,
    args,
    argument_names,
    names,
    plain_names,
    qualified_names,
    sizes,
    tensor_types,
)
from stagewire.types import TensorType, ValueType

_SOURCES = st.sampled_from(["", "int x;", 'extern "C" void f(float* a) {\n\ta[0] = 1;\n}\n', "|\n\n é"])


@st.composite
def kernel_infos(draw: st.DrawFn, name: str, symbols: Sequence[str] = ()) -> KernelInfo:
    """An entry point with up to two parameters and launch metadata."""
    return KernelInfo(
        name,
        tuple(draw(st.lists(names, max_size=2))),
        tuple(draw(st.lists(sizes(symbols), max_size=3))),
        tuple(draw(st.lists(st.tuples(plain_names, st.integers(1, 1024)), max_size=2))),
        draw(st.sampled_from([1, 4, 8])),
        draw(st.integers(1, 4)),
        draw(st.sampled_from(["", "f"])),
    )


@st.composite
def units(
    draw: st.DrawFn,
    inputs: Sequence[ValueType] | None = None,
    symbols: Sequence[str] = (),
    least_steps: int = 0,
    most_steps: int = 6,
) -> Unit:
    """One direction over inputs of these types (of any types, where not given); bounds as in `loop_graphs`."""
    kinds = draw(st.lists(tensor_types(symbols), max_size=2)) if inputs is None else inputs
    kernel_names = Names(draw)
    kernels = tuple(
        draw(kernel_infos(kernel_names.fresh(), symbols)) for _ in range(draw(st.sampled_from([0, 1, 1, 2])))
    )
    plan = _Plan(draw, symbols, kernels)
    types = tuple(kind for kind in kinds if isinstance(kind, TensorType))
    taken = tuple(plan.define(kind) for kind in types)
    plan.given = frozenset(taken)
    makers = (plan.allocate, plan.view, plan.launch, plan.call, plan.release)
    for _ in range(draw(st.integers(least_steps, most_steps))):
        draw(st.sampled_from(makers))()
    outputs: list[Arg] = [Ref(name) for name in plan.some(3)]
    if outputs:  # what nothing was given is no result
        plan.instructions.append(CallExtern("mine.write.default", tuple(outputs), {}, ()))
    outputs += draw(st.lists(args([], symbols), max_size=1))
    return Unit(
        target=draw(st.sampled_from(("cpp", "triton", "others"))),
        source=draw(_SOURCES),
        kernels=kernels,
        inputs=taken,
        input_types=types,
        outputs=tuple(outputs),
        instructions=tuple(plan.instructions),
        choices=draw(choices(plan.instructions)),
    )


@st.composite
def choices(draw: st.DrawFn, instructions: Sequence[Instruction]) -> tuple[Choice, ...]:
    """None, or one among up to three times the same."""
    if len(instructions) < draw(st.integers(1, 3)):
        return ()
    start = draw(st.integers(0, len(instructions) - 1))
    stop = draw(st.integers(start + 1, len(instructions)))
    return (Choice(start, stop, (tuple(instructions[start:stop]),) * draw(st.integers(0, 2))),)


class _Plan:
    """A unit under construction: its instructions, and the buffers that exist (type None: made by a call)."""

    def __init__(self, draw: st.DrawFn, symbols: Sequence[str], kernels: tuple[KernelInfo, ...]) -> None:
        self.draw, self.symbols, self.kernels = draw, symbols, kernels
        self.names = Names(draw)
        self.given: frozenset[str] = frozenset()
        self.alive: dict[str, TensorType | None] = {}
        self.instructions: list[Instruction] = []

    def define(self, kind: TensorType | None) -> str:
        name = self.names.fresh()
        self.alive[name] = kind
        return name

    def some(self, most: int, least: int = 0) -> list[str]:
        """Names of buffers that exist."""
        if not self.alive:
            return []
        return self.draw(st.lists(st.sampled_from(sorted(self.alive)), min_size=least, max_size=most))

    def allocate(self) -> None:
        """A new buffer, or one in the memory of another of the same type."""
        old = [name for name, kind in self.alive.items() if kind is not None and name not in self.given]
        reuse = self.draw(st.sampled_from([None, *old]))
        kind = self.alive.pop(reuse) if reuse is not None else None
        kind = kind or self.draw(tensor_types(self.symbols))
        self.instructions.append(Allocate(self.define(kind), kind, reuse))

    def view(self) -> None:
        for base in self.some(1):
            kind = self.draw(tensor_types(self.symbols))
            self.instructions.append(MakeView(self.define(kind), base, kind))

    def launch(self) -> None:
        if not self.kernels:
            return
        kernel = self.draw(st.sampled_from(self.kernels))
        count = len(kernel.parameters)
        buffers = self.some(count, count)
        if len(buffers) == count:
            launched = tuple(self.draw(st.lists(sizes(self.symbols), max_size=2)))
            self.instructions.append(Launch(kernel.name, tuple(buffers), launched))

    def call(self) -> None:
        arg = args(sorted(self.alive), self.symbols)
        target = self.draw(qualified_names)
        arguments = tuple(self.draw(st.lists(arg, max_size=3)))
        keywords = self.draw(st.dictionaries(argument_names, arg, max_size=1))
        kept = self.draw(st.lists(st.booleans(), max_size=2))
        types: list[TensorType | None] = [None] * len(kept)
        if self.draw(st.booleans()):
            types = [self.draw(tensor_types(self.symbols)) if keep else None for keep in kept]
        results = tuple(self.define(kind) if keep else "" for keep, kind in zip(kept, types, strict=True))
        stated = tuple(types) if any(types) else ()
        self.instructions.append(CallExtern(target, arguments, keywords, results, stated))

    def release(self) -> None:
        for name in self.some(1):
            if name not in self.given:
                self.alive.pop(name)
                self.instructions.append(Release(name))


def result_types(unit: Unit) -> tuple[TensorType | None, ...]:
    """The types of the outputs; None for a literal or what a call made."""
    types = zip(unit.inputs, unit.input_types, strict=True)
    known: dict[str, TensorType] = {name: type for name, type in types if isinstance(type, TensorType)}
    for instruction in unit.instructions:
        if isinstance(instruction, Allocate | MakeView):
            known[instruction.buffer] = instruction.type
    return tuple(known.get(output.name) if isinstance(output, Ref) else None for output in unit.outputs)
