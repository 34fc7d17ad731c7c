"""Taking a stack apart into locals, and putting it together again."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from bytecap.breaks.shape import Shape
from bytecap.bytecode.assembler import Assembler

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
    from bytecode import Label

    after = Label()
    out.load_local(name)
    out.constant(sentinel)
    out.is_same()
    out.jump_forward_if(False, after)
    out.delete_local(name)
    out.mark(after)
