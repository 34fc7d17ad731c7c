"""The wrapper of one direction: the steps of a `LoopGraph` as instructions (allocate, view, launch, call, release)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stagewire.graph import references
from stagewire.loop import Buffer, Extern, Free, Kernel, LoopGraph
from stagewire.program import Allocate, CallExtern, Instruction, Launch, MakeView, Release

from codegen.errors import MalformedLoop


def write_instructions(graph: LoopGraph, launches: Mapping[str, Launch]) -> tuple[Instruction, ...]:
    """Buffers are allocated before the kernel that first touches them, views made before their first use."""
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    ready = set(graph.inputs)
    instructions: list[Instruction] = []
    for step in graph.steps:
        match step:
            case Kernel():
                launch = launches[step.name]
                made = [i for name in launch.buffers for i in _provide(name, buffers, ready, allocate=True)]
                instructions += [*made, launch]
                # the taken-over buffer may be read by this very kernel, so its name goes after it
                instructions += [Release(i.reuse) for i in made if isinstance(i, Allocate) and i.reuse is not None]
            case Extern(target, args, kwargs, results):
                for arg in (*args, *kwargs.values()):
                    for name in references(arg):
                        instructions += _provide(name, buffers, ready, allocate=False)
                instructions.append(CallExtern(target, args, kwargs, results))
                ready.update(name for name in results if name)
            case Free(name):
                instructions.append(Release(name))
    for arg in graph.outputs:
        for name in references(arg):
            instructions += _provide(name, buffers, ready, allocate=True)
    return tuple(instructions)


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
