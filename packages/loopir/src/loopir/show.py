"""Loop documents as text, one line a statement.

buffer x input f32[4, 8] stride (8, 1)
kernel0 (i0: 4)                       # softmax
  section (r0: 8)
    v0 = load x[8*i0 + r0] float32
    v1 = reduce max v0 float32
"""

from __future__ import annotations

from collections.abc import Iterator

from loopir.index import str_index
from stagewire.graph import (
    Arg,
    DeviceArg,
    DTypeArg,
    LayoutArg,
    List,
    MemoryFormatArg,
    NonFinite,
    Ref,
    Tuple,
)
from stagewire.loop import (
    Axis,
    Buffer,
    Compute,
    Decision,
    Extern,
    Free,
    IndexValue,
    Kernel,
    Load,
    Loop,
    LoopGraph,
    Operand,
    Reduce,
    Statement,
    Step,
    Store,
)


def show(document: Loop | LoopGraph) -> str:
    """The whole document, or one direction of it."""
    if isinstance(document, LoopGraph):
        return "\n".join(_graph_lines(document)) + "\n"
    parts = ["forward:\n" + show(document.forward)]
    if document.backward is not None:
        parts.append("backward:\n" + show(document.backward))
    return "\n".join(parts)


def show_steps(graph: LoopGraph) -> str:
    """Only the steps."""
    return "\n".join(line for step in graph.steps for line in step_lines(step)) + "\n"


def _graph_lines(graph: LoopGraph) -> Iterator[str]:
    for buffer in graph.buffers:
        yield buffer_line(buffer)
    yield f"inputs {', '.join(graph.inputs)}"
    for step in graph.steps:
        yield from step_lines(step)
    yield f"outputs {', '.join(show_arg(o) for o in graph.outputs)}"
    for decision in graph.decisions:
        yield decision_line(decision)


def buffer_line(buffer: Buffer) -> str:
    """One buffer."""
    type = buffer.type
    text = f"buffer {buffer.name} {buffer.role} {type.dtype}{_list(type.shape)} stride {_list(type.stride)}"
    if type.storage_offset != 0:
        text += f" offset {type.storage_offset}"
    if buffer.base:
        text += f" base {buffer.base}"
    if buffer.reuse:
        text += f" reuse {buffer.reuse}"
    return text


def decision_line(decision: Decision) -> str:
    """One decision."""
    saved = f" ({decision.bytes_saved} bytes)" if decision.bytes_saved != 0 else ""
    return f"# {decision.action} {', '.join(decision.subjects)}: {decision.reason}{saved}"


def step_lines(step: Step) -> Iterator[str]:
    """One step."""
    match step:
        case Free(buffer):
            yield f"free {buffer}"
        case Extern(target, args, kwargs, results):
            named = [f"{key}={show_arg(arg)}" for key, arg in kwargs.items()]
            call = ", ".join([*(show_arg(arg) for arg in args), *named])
            yield f"{', '.join(r or '_' for r in results)} = {target}({call})"
        case Kernel(name, axes, sections, origins):
            yield f"{name} ({_axes(axes)})" + (f"  # {' '.join(origins)}" if origins else "")
            for section in sections:
                yield f"  section ({_axes(section.axes)})"
                for statement in section.statements:
                    yield f"    {statement_line(statement)}"


def statement_line(statement: Statement) -> str:
    """One statement."""
    match statement:
        case Load(result, buffer, index, dtype, mask, other):
            guard = f" if {mask.name} else {_operand(other)}" if mask else ""
            return f"{result} = load {buffer}[{str_index(index)}] {dtype}{guard}"
        case Store(buffer, index, value, mode, mask):
            sign = "=" if mode == "set" else "+="
            guard = f" if {mask.name}" if mask else ""
            return f"store {buffer}[{str_index(index)}] {sign} {_operand(value)}{guard}"
        case Compute(result, op, operands, dtype):
            return f"{result} = {op}({', '.join(_operand(o) for o in operands)}) {dtype}"
        case IndexValue(result, index, dtype):
            return f"{result} = index {str_index(index)} {dtype}"
        case Reduce(results, reduction, operand, dtype):
            return f"{', '.join(results)} = reduce {reduction} {_operand(operand)} {dtype}"


def _operand(operand: Operand) -> str:
    match operand:
        case Ref(name):
            return name
        case NonFinite(text):
            return text
        case _:
            return repr(operand)


def show_arg(arg: Arg) -> str:
    """An argument of an extern."""
    match arg:
        case Ref(name) | DTypeArg(name) | DeviceArg(name) | LayoutArg(name) | MemoryFormatArg(name):
            return name
        case List(items) | Tuple(items):
            return f"[{', '.join(show_arg(item) for item in items)}]"
        case NonFinite(text):
            return text
        case _:
            return repr(arg)


def _axes(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{axis.name}: {axis.size}" for axis in axes)


def _list(items: tuple[object, ...]) -> str:
    return f"[{', '.join(str(item) for item in items)}]"
