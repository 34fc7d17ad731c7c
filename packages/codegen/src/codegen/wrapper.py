"""The wrapper of one direction: the steps of a `LoopGraph` as instructions (allocate, view, launch, call, release),
and what they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from codegen.choices import Templates
from codegen.errors import MalformedLoop
from stagewire.expr import symbol
from stagewire.graph import references
from stagewire.loop import Buffer, Extern, Free, Kernel, LoopGraph, Store
from stagewire.program import Allocate, CallExtern, Choice, Instruction, KernelInfo, Launch, MakeView, Release, Unit
from stagewire.statements import buffers_of, select
from stagewire.substitution import symbols_in
from stagewire.types import ScalarType, TensorType


def launch_each(graph: LoopGraph) -> tuple[tuple[KernelInfo, ...], dict[str, Launch]]:
    """For targets with one function for each kernel of the graph, of its name: entry points, and their launches on the
    buffers that the kernel touches, in order, and every symbol that it names, sorted."""
    infos: list[KernelInfo] = []
    launches: dict[str, Launch] = {}
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    for kernel in graph.steps:
        if isinstance(kernel, Kernel):
            names = tuple(dict.fromkeys(buffers_of(kernel)))
            named = sorted(symbols_in((kernel, tuple(types[name] for name in names))))
            infos.append(KernelInfo(kernel.name, names))
            launches[kernel.name] = Launch(kernel.name, names, tuple(map(symbol, named)))
    return tuple(infos), launches


def write_unit(
    graph: LoopGraph,
    launches: Mapping[str, Launch | None],
    templates: Mapping[int, Templates] = MappingProxyType({}),
    own: Mapping[int, Sequence[Instruction]] = MappingProxyType({}),
    **more: Any,
) -> Unit:
    """The unit of a graph, with these fields as well; see `write_wrapper`."""
    instructions, choices = write_wrapper(graph, launches, templates, own)
    written = tuple(b.reuse for b in graph.buffers if b.reuse is not None and b.reuse in graph.inputs)
    return Unit(
        inputs=graph.inputs, input_types=_input_types(graph), outputs=graph.outputs, instructions=instructions,
        written=written, choices=choices, **more,
    )  # fmt: skip


def write_wrapper(
    graph: LoopGraph,
    launches: Mapping[str, Launch | None],
    templates: Mapping[int, Templates],
    own: Mapping[int, Sequence[Instruction]],
) -> tuple[tuple[Instruction, ...], tuple[Choice, ...]]:
    """The instructions (buffers are allocated before the kernel that first touches them, views made before their first
    use), and the choices among them. templates: by the number of the step that is the call; the launch
    of what makes an operand may be the step before, that of what uses the result the next, and the ends of the result
    and of that operand those behind. own: by the number of the step, what stands in place of a call."""
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    ready = set(graph.inputs)
    written = {
        store.buffer for kernel in graph.steps if isinstance(kernel, Kernel) for store in select(kernel.sections, Store)
    }
    instructions: list[Instruction] = []
    choices: list[Choice] = []
    starts = {number - (one.made is not None): number for number, one in templates.items()}
    ends: dict[int, tuple[int, Templates]] = {}
    for number, step in enumerate(graph.steps):
        if number in starts:
            one = templates[starts[number]]
            last = starts[number] + one.launched
            while last + 1 < len(graph.steps) and graph.steps[last + 1] in (Free(one.result), Free(one.made or "")):
                last += 1
            ends[last] = len(instructions), one
        match step:
            case Kernel():
                launch = launches[step.name]  # None: it runs in the launch of an earlier kernel
                # windows on memory that exists come first: a new buffer may take that memory over
                names = sorted(launch.buffers if launch else (), key=lambda name: buffers[name].base not in ready)
                made = [i for name in names for i in _provide(name, buffers, ready, allocate=True)]
                instructions += _in_place(made, launch, buffers) if launch else []
            case Extern(target, args, kwargs, results):
                for arg in (*args, *kwargs.values()):
                    for name in references(arg):
                        # what no kernel writes has no elements, and may be used as it is
                        owner = buffers[name].base or name if name in buffers else name
                        instructions += _provide(name, buffers, ready, allocate=owner not in written)
                types = tuple(buffers[name].type if name else None for name in results)
                instructions += own.get(number, (CallExtern(target, args, kwargs, results, types),))
                ready.update(name for name in results if name)
            case Free(name):
                instructions.append(Release(name))
        if number in ends:
            start, one = ends[number]
            choices.append(Choice(start, len(instructions), one.instead_of(instructions[start:])))
    for arg in graph.outputs:
        for name in references(arg):
            instructions += _provide(name, buffers, ready, allocate=True)
    return tuple(instructions), tuple(choices)


def _input_types(graph: LoopGraph) -> tuple[TensorType | ScalarType, ...]:
    """The types of the inputs; those that are symbols are integers."""
    types: dict[str, TensorType | ScalarType] = {buffer.name: buffer.type for buffer in graph.buffers}
    types |= dict.fromkeys(graph.symbols, ScalarType("int"))
    missing = [name for name in graph.inputs if name not in types]
    if missing:
        raise MalformedLoop(f"inputs without a buffer: {', '.join(missing)}")
    return tuple(types[name] for name in graph.inputs)


def _provide(name: str, buffers: Mapping[str, Buffer], ready: set[str], *, allocate: bool) -> Iterator[Instruction]:
    """Instructions that make `name` exist, if it does not yet."""
    if name in ready:
        return
    buffer = buffers.get(name)
    if buffer is None:
        raise MalformedLoop(f"a step uses the buffer {name!r}, which the graph does not declare")
    if buffer.role == "view":
        if buffer.base is None:
            raise MalformedLoop(f"the view {name!r} has no base")
        yield from _provide(buffer.base, buffers, ready, allocate=allocate)
        yield MakeView(name, buffer.base, buffer.type)
    elif buffer.role == "kernel" and allocate:
        yield Allocate(name, buffer.type, buffer.reuse)
    else:
        raise MalformedLoop(f"the {buffer.role} buffer {name!r} is read before anything writes it")
    ready.add(name)


def _in_place(made: list[Instruction], launch: Launch, buffers: Mapping[str, Buffer]) -> list[Instruction]:
    """`made`, then `launch`, in which a buffer whose memory was just taken over is read under the new name.

    Memory of another dtype cannot be read under the new name: such a buffer gets memory of its own.
    """
    before: list[Instruction] = []
    after: list[Instruction] = []
    names: dict[str, str] = {}
    for instruction in made:
        match instruction:
            case Allocate(buffer, type, str(reuse)) if reuse in launch.buffers:
                if buffers[reuse].type.dtype == type.dtype:
                    names[reuse] = buffer
                else:
                    instruction = Allocate(buffer, type)
                    after.append(Release(reuse))
        before.append(instruction)
    taken = tuple(names.get(name, name) for name in launch.buffers)
    return [*before, Launch(launch.kernel, taken, launch.sizes), *after]
