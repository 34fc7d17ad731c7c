"""The shape of a frame's stack at each instruction: which entries are objects, which are CPython's own.

    shape ::= entry*                       the deepest first
    entry ::= value                        a Python object
            | raised                       the exception that a handler starts with
            | null                         the NULL beside a callable
            | lasti                        where an exception was raised, which matters to nobody
            | handled                      what PUSH_EXC_INFO saved: an exception is being handled above it
            | stale                        a copy of that, or that when the handling has ended: no place for a break
            | saved                        a variable that an inlined comprehension put aside (3.12 and later)

The compiler gives every instruction one shape, however it is reached, if LOAD_METHOD and its kin push NULL always
(CPython pushes a receiver instead where it can; bytecap's evaluator and its copies do not).
"""

from __future__ import annotations

import dis
import sys
from types import CodeType, TracebackType
from typing import Any, Literal

from bytecap.breaks.flow import successors_of
from bytecap.bytecode.assembler import Assembler
from bytecap.bytecode.decode import Program, decode, per_code

Entry = Literal["value", "raised", "null", "lasti", "handled", "stale", "saved"]
Shape = tuple[Entry, ...]

# What a handler covers without need: the stack is not yet, or no longer, as the handler wants it.
_NEVER_RAISES = frozenset({"PUSH_EXC_INFO", "POP_EXCEPT", "NOP", "POP_TOP", "COPY", "SWAP"})
# What calls take beside their arguments.
_CALLS = {"CALL": 2, "CALL_KW": 3}
_NULL_FIRST = sys.version_info < (3, 13)
_CALLABLE: Shape = ("null", "value") if _NULL_FIRST else ("value", "null")
# Loads that push a callable and NULL if the lowest bit of their argument is set, and how much they pop.
_LOADS = {"LOAD_GLOBAL": 0, "LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 3}
if sys.version_info < (3, 12):
    del _LOADS["LOAD_ATTR"]


@per_code
def shapes_of(code: CodeType) -> tuple[Shape | None, ...]:
    """The shape before each instruction of `code`; None for what cannot be reached."""
    program = decode(code)
    shapes: list[Shape | None] = [None] * len(program.instructions)
    waiting = [0]
    shapes[0] = ()
    while waiting:
        index = waiting.pop()
        before = shapes[index]
        following = [(target, _after(program, index, before, target)) for target in successors_of(program, index)]
        handler = program.handler_at(index)
        if handler is not None and program.instructions[index].opname not in _NEVER_RAISES:
            # What is left of the stack; where the exception was raised, if that is wanted; the exception.
            lasti: Shape = ("lasti",) if handler.lasti else ()
            following.append((handler.target, (*before[: handler.depth], *lasti, "raised")))
        for target, shape in following:
            if shapes[target] is None:
                shapes[target] = shape
                waiting.append(target)
    return tuple(shapes)


def _after(program: Program, index: int, shape: Shape, target: int) -> Shape:
    """The shape at `target`, which follows `index`, which starts with `shape`."""
    instruction = program.instructions[index]
    name, arg = instruction.opname, instruction.arg
    if name in _CALLS:
        return (*shape[: len(shape) - arg - _CALLS[name]], "value")
    if name in _LOADS and arg & 1:
        return (*shape[: len(shape) - _LOADS[name]], *_CALLABLE)
    match name:
        case "PRECALL":
            return shape
        case "CALL_FUNCTION_EX":
            return (*shape[: len(shape) - 3 - (arg & 1)], "value")
        case "LOAD_METHOD":
            return (*shape[:-1], *_CALLABLE)
        case "PUSH_NULL":
            return (*shape, "null")
        case "PUSH_EXC_INFO":
            return (*shape[:-1], "handled", "value")
        case "POP_EXCEPT":
            if shape[-1] == "handled":
                return shape[:-1]
            # The innermost handling ends, what PUSH_EXC_INFO saved is still there.
            last = max(at for at, entry in enumerate(shape[:-1]) if entry == "handled")
            return (*shape[:last], "stale", *shape[last + 1 : -1])
        case "LOAD_FAST_AND_CLEAR":
            return (*shape, "saved")
        case "COPY":
            return (*shape, "stale" if shape[-arg] == "handled" else shape[-arg])
        case "SWAP":
            return (*shape[:-arg], shape[-1], *shape[len(shape) - arg + 1 : -1], shape[-arg])
        case "FOR_ITER" if target != index + 1:
            # 3.11 and 3.12 drop the iterator; 3.13 leaves that to the instruction after END_FOR.
            return shape[:-1] if _NULL_FIRST else shape
    operand = arg if instruction.number >= dis.HAVE_ARGUMENT else None
    effect = dis.stack_effect(instruction.number, operand, jump=target != index + 1)
    return shape[:effect] if effect < 0 else (*shape, *["value"] * effect)  # type: ignore[return-value]


# -- taking a stack apart into locals, and putting it together again

HELD = frozenset({"value", "raised", "handled"})
"""The entries of a stack that a state holds an object for."""


def slot(index: int) -> str:
    """The local that holds an entry."""
    return f".stack{index}"


def slots(shape: Shape) -> tuple[str, ...]:
    """The locals that hold a stack, the deepest entry first."""
    return tuple(slot(index) for index, entry in enumerate(shape) if entry in HELD)


def take_apart(out: Assembler, shape: Shape) -> None:
    """Pop the whole stack into its slots; what was being handled is handled no more."""
    for index in reversed(range(len(shape))):
        match shape[index]:
            case "value" | "raised":
                out.store_local(slot(index))
            case "null":
                # CPython lets NULL be stored: it makes the variable unbound.
                out.store_local(".null")
            case "lasti":
                out.pop()
            case "handled":
                out.call_function(sys.exception)
                out.store_local(slot(index))
                out.emit("POP_EXCEPT")


def put_together(out: Assembler, shape: Shape) -> None:
    """Push the whole stack from its slots, which are unbound afterwards."""
    for index, entry in enumerate(shape):
        if entry == "null":
            out.emit("PUSH_NULL")
            continue
        if entry == "lasti":
            out.constant(0)
            continue
        out.load_local(slot(index))
        out.delete_local(slot(index))
        if entry in ("raised", "handled"):
            out.call_function(raised_here, arguments=1)
        if entry == "handled":
            out.emit("PUSH_EXC_INFO")
            out.pop()


def raised_here(error: BaseException | None) -> BaseException | None:
    """An exception that captured code raised, with the traceback that CPython expects of whatever is handled."""
    if error is not None and error.__traceback__ is None:
        frame = sys._getframe(1)
        error.__traceback__ = TracebackType(None, frame, frame.f_lasti, frame.f_lineno)
    return error


def drop_if(out: Assembler, name: str, sentinel: Any) -> None:
    """Make a local unbound if it holds `sentinel`."""
    out.load_local(name)
    with out.if_top_is(sentinel):
        out.delete_local(name)
