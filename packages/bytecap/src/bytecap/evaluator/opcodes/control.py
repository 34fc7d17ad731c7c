"""Jumps, loops, returns, generators."""

from __future__ import annotations

import sys
from typing import Any

from bytecap.context_types import Frame, Instruction
from bytecap.objects.base import IteratorValue, Value
from bytecap.objects.constant import Constant
from bytecap.objects.iterators.generators import GeneratorValue
from bytecap.objects.signals import End, Returned, Yielded
from bytecap.semantics.operations import is_same

_V312 = sys.version_info >= (3, 12)
_V313 = sys.version_info >= (3, 13)


def _jump(frame: Frame, instruction: Instruction) -> None:
    frame.pc = instruction.target


def _counted(jump: Any) -> Any:
    """A jump that closes a loop."""

    def count(frame: Frame, instruction: Instruction) -> None:
        frame.tracer.frames.count_iteration()
        jump(frame, instruction)

    return count


_ON_BOOL = frozenset({"POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"})


def to_bool(frame: Frame, value: Value) -> Constant:
    """bool(value), by an instruction that 3.13 puts before the jump that goes by it."""
    jump = frame.program.instructions[frame.pc]
    if jump.opname in _ON_BOOL:
        return Constant(frame.tracer.checks.decide(frame, value, frame.pc))
    return Constant(value.truth(frame.tracer))


def _jump_if(wanted: bool) -> Any:
    def jump(frame: Frame, instruction: Instruction) -> None:
        if frame.tracer.checks.decide(frame, frame.pop(), frame.pc - 1) is wanted:
            frame.pc = instruction.target

    return jump


def _jump_if_none(wanted: bool) -> Any:
    def jump(frame: Frame, instruction: Instruction) -> None:
        if is_same(frame.tracer, frame.pop(), Constant(None)) is wanted:
            frame.pc = instruction.target

    return jump


def _jump_or_pop(wanted: bool) -> Any:
    def jump(frame: Frame, instruction: Instruction) -> None:
        if frame.stack[-1].truth(frame.tracer) is wanted:
            frame.pc = instruction.target
        else:
            frame.pop()

    return jump


def _for_iter(frame: Frame, instruction: Instruction) -> None:
    item = frame.stack[-1].next(frame.tracer)
    if not isinstance(item, End):
        frame.push(item)
        return
    following = frame.program.instructions[instruction.target]
    if following.opname != "END_FOR":
        frame.pop()
        frame.pc = instruction.target
    elif frame.program.instructions[instruction.target + 1].opname == "POP_TOP" and _V313:
        frame.pc = instruction.target + 1
    else:
        frame.pop()
        frame.pc = instruction.target + 1


def _return_generator(frame: Frame, instruction: Instruction) -> None:
    # The caller made the generator already; what follows pops the first sent value.
    frame.push(Constant(None))


def _get_yield_from_iter(frame: Frame, instruction: Instruction) -> None:
    if not isinstance(frame.stack[-1], GeneratorValue):
        frame.push(frame.pop().iterate(frame.tracer))


def _send(frame: Frame, instruction: Instruction) -> None:
    sent, receiver = frame.pop(), frame.stack[-1]
    if isinstance(receiver, GeneratorValue):
        result = receiver.send(frame.tracer, sent)
    elif isinstance(receiver, IteratorValue) or sent.is_none():
        result = receiver.next(frame.tracer)
    else:
        result = receiver.get_attribute(frame.tracer, "send").call(frame.tracer, [sent], {})
    if isinstance(result, End):
        if not _V312:
            frame.pop()
        frame.push(result.value or Constant(None))
        frame.pc = instruction.target
    else:
        frame.push(result)


_CONDITIONAL = {
    f"POP_JUMP_{direction}IF_{what}": _counted(handler) if direction == "BACKWARD_" else handler
    for direction in ("", "FORWARD_", "BACKWARD_")
    for what, handler in (
        ("TRUE", _jump_if(True)),
        ("FALSE", _jump_if(False)),
        ("NONE", _jump_if_none(True)),
        ("NOT_NONE", _jump_if_none(False)),
    )
}

CONTROL = {
    **_CONDITIONAL, "JUMP_FORWARD": _jump, "JUMP_BACKWARD": _counted(_jump), "JUMP_BACKWARD_NO_INTERRUPT": _jump,
    "JUMP_IF_TRUE_OR_POP": _jump_or_pop(True), "JUMP_IF_FALSE_OR_POP": _jump_or_pop(False), "FOR_ITER": _for_iter,
    "RETURN_GENERATOR": _return_generator, "GET_YIELD_FROM_ITER": _get_yield_from_iter, "SEND": _send,
    "GET_ITER": lambda frame, instruction: frame.push(frame.pop().iterate(frame.tracer)),
    "RETURN_VALUE": lambda frame, instruction: Returned(frame.pop()),
    "YIELD_VALUE": lambda frame, instruction: Yielded(frame.pop()),
    "LOAD_ASSERTION_ERROR": lambda frame, instruction: frame.push(frame.tracer.objects.wrap(AssertionError, None)),
}  # fmt: skip
