"""L11, R13 and R14: how what a stage has made meets what it was given."""

from __future__ import annotations

import itertools

from stagewire.codec import Document
from stagewire.graph import Graph, references
from stagewire.loop import Loop, LoopGraph
from stagewire.prim import Prim
from stagewire.program import Allocate, Program, Unit, made_buffers
from stagewire.types import TensorType, ValueType
from stagewire.verify.fault import Fault, Faults
from stagewire.verify.types import bytes_reached

_LABELS: dict[tuple[type, type], str] = {(Prim, Loop): "L11", (Loop, Program): "R13"}


def check_conversion(given: Document | None, made: Document) -> Faults:
    """Each direction of a document of known sizes that breaks nothing by itself."""
    label = _LABELS.get((type(given), type(made)))
    if label is None:
        return
    for name in ("forward", "backward"):
        before, after = getattr(given, name), getattr(made, name)
        if before is None or after is None:
            continue
        pairs = zip(before.outputs, after.outputs, strict=False)
        types, own = _types(before), _types(after)
        for number, (arg, own_arg) in enumerate(pairs):
            for one, other in zip(references(arg), references(own_arg), strict=False):
                expected, found = types.get(one), own.get(other)
                if _differ(expected, found, strides=label == "R13"):
                    yield Fault(label, f"output {number} is {found}, and was {expected}", (name, "outputs"))
        if isinstance(after, Unit):
            yield from _check_allocations(types, after, name)


def _types(part: Graph | LoopGraph | Unit) -> dict[str, ValueType | None]:
    match part:
        case Graph():
            return {one.name: one.type for one in (*part.inputs, *(v for node in part.nodes for v in node.results))}
        case LoopGraph():
            return {buffer.name: buffer.type for buffer in part.buffers}
        case Unit():
            made = (row for instruction in part.instructions for row in made_buffers(instruction))
            return {
                **dict(zip(part.inputs, part.input_types, strict=False)),
                **{name: type_ for name, _, type_ in made},
            }


def _differ(expected: ValueType | None, found: ValueType | None, *, strides: bool) -> bool:
    if not isinstance(expected, TensorType) or not isinstance(found, TensorType):
        return False
    if (expected.dtype, expected.shape, expected.device) != (found.dtype, found.shape, found.device):
        return True
    steps = zip(expected.shape, expected.stride, found.stride, strict=False)
    return strides and 0 not in expected.shape and any(size != 1 and one != other for size, one, other in steps)


def _check_allocations(types: dict[str, ValueType | None], unit: Unit, direction: str) -> Faults:
    others = (one for choice in unit.choices for instructions in choice.alternatives for one in instructions)
    for instruction in itertools.chain(unit.instructions, others):
        if isinstance(instruction, Allocate) and isinstance(type_ := types.get(instruction.buffer), TensorType):
            needed, given = bytes_reached(type_), bytes_reached(instruction.type)
            if given < needed:
                message = f"%{instruction.buffer} has {given} bytes, in the loop document {needed}"
                yield Fault("R14", message, (direction, "instructions"))
