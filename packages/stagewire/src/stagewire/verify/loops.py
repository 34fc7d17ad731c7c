"""L1 to L10 and L12: buffers and the order of steps in a Loop (K1 to K10 are inside a kernel)."""

from __future__ import annotations

from stagewire import loop
from stagewire.graph import references
from stagewire.statements import accesses
from stagewire.types import ScalarType
from stagewire.verify.bindings import QUALIFIED, Direction, check_directions
from stagewire.verify.fault import Fault, Faults, Path, duplicates
from stagewire.verify.graphs import call_faults
from stagewire.verify.kernels import check_kernel
from stagewire.verify.memory import Traffic, check_elements, check_reuse, owner_of, reads_and_writes
from stagewire.verify.types import behind


def check_loop(document: loop.Loop) -> Faults:
    return check_directions(document.binding, document.forward, document.backward, check_loop_graph, _direction)


def _direction(name: str, graph: loop.LoopGraph) -> Direction:
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    scalars = dict.fromkeys(graph.symbols, ScalarType("int"))
    return Direction(name, tuple(types.get(name) or scalars.get(name) for name in graph.inputs), len(graph.outputs))


def check_loop_graph(graph: loop.LoopGraph, path: Path = ()) -> Faults:
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    wrong = tuple(_check_buffers(graph, buffers, path))
    yield from wrong
    yield from _check_inputs(graph, buffers, path)
    traffic = tuple(reads_and_writes(step) for step in graph.steps)
    unknown = tuple(_check_declared(graph, buffers, traffic, path))
    yield from unknown
    for position, step in enumerate(graph.steps):
        where = (*path, "steps", position)
        match step:
            case loop.Kernel():
                yield from check_kernel(step, buffers, where)
            case loop.Extern():
                if not QUALIFIED.fullmatch(step.target):
                    yield Fault("L9", f"{step.target!r} is no qualified name", where)
                for message in call_faults(step.target, step.kwargs):
                    yield Fault("L10", message, where)
            case loop.Free():
                continue
    if not unknown:
        yield from _check_order(graph, buffers, traffic, path)
        yield from check_reuse(graph, buffers, traffic, path)
        yield from () if wrong else check_elements(graph, buffers, path)


def _check_buffers(graph: loop.LoopGraph, buffers: dict[str, loop.Buffer], path: Path) -> Faults:
    for position, name in duplicates(buffer.name for buffer in graph.buffers):
        yield Fault("L1", f"the buffer {name!r} is declared twice, or has no name", (*path, "buffers", position))
    for position, buffer in enumerate(graph.buffers):
        where = (*path, "buffers", position)
        if (buffer.base is not None) != (buffer.role == "view"):
            yield Fault("L1", f"a buffer of role {buffer.role!r} with base {buffer.base!r}", where)
        base = buffers.get(buffer.base or "")
        if buffer.base is not None and (base is None or base.role == "view"):
            yield Fault("L1", f"the base {buffer.base!r} is no buffer with its own memory", where)
        if base is not None and base.role == "kernel" and (size := behind(buffer.type, base.type)) is not None:
            yield Fault("L12", f"%{buffer.name} ends behind the {size} bytes of %{base.name}, or starts before", where)
        if buffer.reuse is not None and buffer.role != "kernel":
            yield Fault("L1", f"a buffer of role {buffer.role!r} reuses {buffer.reuse!r}", where)


def _check_inputs(graph: loop.LoopGraph, buffers: dict[str, loop.Buffer], path: Path) -> Faults:
    for _, name in duplicates(graph.inputs):
        yield Fault("L2", f"the input {name!r} stands twice", (*path, "inputs"))
    for name in graph.symbols:
        if name not in graph.inputs or name in buffers:
            yield Fault("L2", f"the symbol {name!r} is a buffer, or no input", (*path, "symbols"))
    for name in graph.inputs:
        if name not in graph.symbols and (name not in buffers or buffers[name].role != "input"):
            yield Fault("L2", f"the input {name!r} is no buffer of role 'input'", (*path, "inputs"))
    for number, name in graph.updates:
        if not 0 <= number < len(graph.outputs) or name not in buffers or buffers[name].role != "input":
            yield Fault("L2", f"output {number} cannot update %{name}", (*path, "updates"))
    for position, buffer in enumerate(graph.buffers):
        if buffer.role == "input" and buffer.name not in graph.inputs:
            yield Fault("L2", f"%{buffer.name} is not among the inputs", (*path, "buffers", position))
    kernels = [(position, step.name) for position, step in enumerate(graph.steps) if isinstance(step, loop.Kernel)]
    for number, name in duplicates(name for _, name in kernels):
        yield Fault("L2", f"two kernels are called {name!r}", (*path, "steps", kernels[number][0]))


def _check_declared(
    graph: loop.LoopGraph, buffers: dict[str, loop.Buffer], traffic: tuple[Traffic, ...], path: Path
) -> Faults:
    for position, (step, (reads, writes)) in enumerate(zip(graph.steps, traffic, strict=True)):
        names = {step.buffer} if isinstance(step, loop.Free) else reads | writes
        for name in sorted(names - buffers.keys()):
            yield Fault("L3", f"there is no buffer %{name}", (*path, "steps", position))
    for output in graph.outputs:
        for name in references(output):
            if name not in buffers:
                yield Fault("L3", f"there is no buffer %{name}", (*path, "outputs"))
    for position, buffer in enumerate(graph.buffers):
        if buffer.reuse is not None and buffer.reuse not in buffers:
            yield Fault("L3", f"there is no buffer %{buffer.reuse}", (*path, "buffers", position))


def _check_order(
    graph: loop.LoopGraph, buffers: dict[str, loop.Buffer], traffic: tuple[Traffic, ...], path: Path
) -> Faults:
    """L4 to L7."""
    written = set(graph.inputs) | {buffer.name for buffer in graph.buffers if 0 in buffer.type.shape}
    made: set[str] = set()
    freed: set[str] = set()
    for position, step in enumerate(graph.steps):
        where = (*path, "steps", position)
        if isinstance(step, loop.Free):
            if step.buffer in freed:
                yield Fault("L7", f"%{step.buffer} is freed twice", where)
            freed.add(step.buffer)
            continue
        reads, writes = traffic[position]
        for name in sorted(reads | writes):
            if name in freed or owner_of(name, buffers) in freed:
                yield Fault("L7", f"%{name} is used after it was freed", where)
        if isinstance(step, loop.Kernel):
            yield from _check_kernel_order(step, written, buffers, where)
        else:
            for name in sorted(reads):
                if owner_of(name, buffers) not in written:
                    yield Fault("L5", f"%{name} is read before anything writes it", where)
            for name in filter(None, step.results):
                if buffers[name].role != "extern" or name in made:
                    yield Fault("L6", f"an extern makes %{name}, a buffer of role {buffers[name].role!r}", where)
                made.add(name)
        written |= {owner_of(name, buffers) for name in writes}
    for output in graph.outputs:
        for name in references(output):
            if name in freed or owner_of(name, buffers) in freed:
                yield Fault("L7", f"the output %{name} was freed", (*path, "outputs"))
            if owner_of(name, buffers) not in written:
                yield Fault("L5", f"nothing writes the output %{name}", (*path, "outputs"))


def _check_kernel_order(kernel: loop.Kernel, written: set[str], buffers: dict[str, loop.Buffer], path: Path) -> Faults:
    """L4 and L5 inside one kernel."""
    stored = dict.fromkeys(written, -1)
    for position, number, statement in accesses(kernel):
        owner = owner_of(statement.buffer, buffers)
        where = (*path, "sections", position, "statements", number)
        if isinstance(statement, loop.Store):
            if buffers[owner].role == "input":
                yield Fault("L4", f"%{statement.buffer} is the caller's", where)
            stored.setdefault(owner, position)
        elif stored.get(owner, position) >= position:
            yield Fault("L5", f"%{statement.buffer} is read before anything writes it", where)
