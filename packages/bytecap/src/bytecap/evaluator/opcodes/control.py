"""Jumps, loops, returns, generators, exceptions; what an operator of the stack is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from bytecap.context_types import Frame, Instruction
from bytecap.objects.base import Constant, End, Handled, IteratorValue, PythonRaise, Returned, Value, Yielded
from bytecap.objects.class_lookup import static_lookup
from bytecap.objects.containers.sequences import TupleValue
from bytecap.objects.functions import ClassValue
from bytecap.objects.iterators import GeneratorValue
from bytecap.semantics.attributes import bind
from bytecap.semantics.operations import is_same

_V312 = sys.version_info >= (3, 12)
_V313 = sys.version_info >= (3, 13)


def on_stack(count: int, compute: Callable[..., Any]) -> Callable[[Frame, Instruction], None]:
    """A handler that pops `count` entries, and pushes what `compute(tracer, *entries)` gives, if that is anything."""

    def handler(frame: Frame, instruction: Instruction) -> None:
        entries = frame.stack[-count:]
        del frame.stack[-count:]
        made = compute(frame.tracer, *entries)
        if made is not None:
            frame.stack.append(made)

    return handler


def on_many(compute: Callable[..., Any], *, each: int = 1, more: int = 0) -> Callable[[Frame, Instruction], None]:
    """A handler that pops `each` entries for each of its argument, and `more`; it pushes `compute(tracer, entries)`."""

    def handler(frame: Frame, instruction: Instruction) -> None:
        frame.push(compute(frame.tracer, frame.pop_many(each * instruction.arg + more)))

    return handler


def on_container(count: int, change: Callable[..., Any]) -> Callable[[Frame, Instruction], None]:
    """A handler that pops `count` entries, and calls `change(tracer, container, *entries)`; its argument says how deep
    the container lies then."""

    def handler(frame: Frame, instruction: Instruction) -> None:
        entries = frame.pop_many(count)
        change(frame.tracer, frame.stack[-instruction.arg], *entries)

    return handler


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


def _jump_if(wanted: bool, ask: Callable[[Frame], bool]) -> Any:
    def jump(frame: Frame, instruction: Instruction) -> None:
        if ask(frame) is wanted:
            frame.pc = instruction.target

    return jump


def _is_true(frame: Frame) -> bool:
    return frame.tracer.checks.decide(frame, frame.pop(), frame.pc - 1)


def _is_none(frame: Frame) -> bool:
    return is_same(frame.tracer, frame.pop(), Constant(None))


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
    # 3.12 and 3.13 step over an END_FOR; 3.13 leaves it to the POP_TOP behind that to drop the iterator.
    rows, target = frame.program.instructions, instruction.target
    has_end = rows[target].opname == "END_FOR"
    if not (has_end and _V313 and rows[target + 1].opname == "POP_TOP"):
        frame.pop()
    frame.pc = target + has_end


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
        ("TRUE", _jump_if(True, _is_true)),
        ("FALSE", _jump_if(False, _is_true)),
        ("NONE", _jump_if(True, _is_none)),
        ("NOT_NONE", _jump_if(False, _is_none)),
    )
}

CONTROL = {
    **_CONDITIONAL, "JUMP_FORWARD": _jump, "JUMP_BACKWARD": _counted(_jump), "JUMP_BACKWARD_NO_INTERRUPT": _jump,
    "JUMP_IF_TRUE_OR_POP": _jump_or_pop(True), "JUMP_IF_FALSE_OR_POP": _jump_or_pop(False), "FOR_ITER": _for_iter,
    "GET_YIELD_FROM_ITER": on_stack(1, lambda tracer, x: x if isinstance(x, GeneratorValue) else x.iterate(tracer)),
    "SEND": _send,
    # The caller made the generator already; what follows pops the first sent value.
    "RETURN_GENERATOR": lambda frame, instruction: frame.push(Constant(None)),
    "GET_ITER": on_stack(1, lambda tracer, value: value.iterate(tracer)),
    "RETURN_VALUE": lambda frame, instruction: Returned(frame.pop()),
    "YIELD_VALUE": lambda frame, instruction: Yielded(frame.pop()),
    "LOAD_ASSERTION_ERROR": lambda frame, instruction: frame.push(frame.tracer.objects.wrap(AssertionError, None)),
}  # fmt: skip


# -- try, except, finally, raise, with.


def _push_exc_info(frame: Frame, instruction: Instruction) -> None:
    raised = frame.pop()
    tracer = frame.tracer
    frame.push(Handled(tracer.frames.handled[-1] if tracer.frames.handled else None, raised))
    tracer.frames.handled.append(raised)
    frame.push(raised)


def _pop_except(frame: Frame, instruction: Instruction) -> None:
    frame.pop()
    if frame.tracer.frames.handled:
        frame.tracer.frames.handled.pop()


def _check_exc_match(frame: Frame, instruction: Instruction) -> None:
    wanted = frame.pop()
    raised = frame.stack[-1].python_type()
    classes = wanted.values(frame.tracer) if isinstance(wanted, TupleValue) else [wanted]
    for cls in classes:
        if not isinstance(cls, ClassValue) or not issubclass(cls.real, BaseException):
            complaint = "catching classes that do not inherit from BaseException is not allowed"
            raise frame.tracer.raises(TypeError, complaint)
    frame.push(Constant(any(issubclass(raised, cls.concrete()) for cls in classes)))


def _reraise(frame: Frame, instruction: Instruction) -> None:
    raise PythonRaise(frame.pop())


def _raise_varargs(frame: Frame, instruction: Instruction) -> None:
    if instruction.arg == 0:
        if not frame.tracer.frames.handled:
            raise frame.tracer.raises(RuntimeError, "No active exception to reraise")
        raise PythonRaise(frame.tracer.frames.handled[-1])
    cause = frame.pop() if instruction.arg == 2 else None
    raised = _instance(frame, frame.pop(), "exceptions must derive from BaseException")
    if cause is not None:
        if not cause.is_none():
            cause = _instance(frame, cause, "exception causes must derive from BaseException")
        raised.set_attribute(frame.tracer, "__cause__", cause)
    raise frame.tracer.raising(raised)


def _instance(frame: Frame, raised: Value, complaint: str) -> Value:
    """An exception, or the one that a class makes."""
    if isinstance(raised, ClassValue) and issubclass(raised.real, BaseException):
        raised = raised.call(frame.tracer, [], {})
    if not issubclass(raised.python_type(), BaseException):
        raise frame.tracer.raises(TypeError, complaint)
    return raised


def _before_with(frame: Frame, instruction: Instruction) -> None:
    tracer = frame.tracer
    manager = frame.pop()
    complaint = f"'{manager.python_type().__name__}' object does not support the context manager protocol"
    enter = _method_of_class(frame, manager, "__enter__", complaint)
    frame.push(_method_of_class(frame, manager, "__exit__", complaint + " (missed __exit__ method)"))
    frame.push(enter.call(tracer, [], {}))


def _method_of_class(frame: Frame, manager: Value, name: str, complaint: str) -> Value:
    """A special method: looked up in the class, past the instance."""
    raw, owner = static_lookup(manager.python_type().__mro__, name)
    if owner is None:
        raise frame.tracer.raises(TypeError, complaint)
    return bind(frame.tracer, raw, owner, manager, manager.python_type(), name)


def _with_except_start(frame: Frame, instruction: Instruction) -> None:
    raised = frame.stack[-1]
    leave = frame.stack[-4]
    cls = frame.tracer.objects.wrap(raised.python_type(), None)
    traceback = raised.get_attribute(frame.tracer, "__traceback__")
    frame.push(leave.call(frame.tracer, [cls, raised, traceback], {}))


EXCEPTIONS = {
    "PUSH_EXC_INFO": _push_exc_info, "POP_EXCEPT": _pop_except, "CHECK_EXC_MATCH": _check_exc_match,
    "RERAISE": _reraise, "RAISE_VARARGS": _raise_varargs, "BEFORE_WITH": _before_with,
    "WITH_EXCEPT_START": _with_except_start,
}  # fmt: skip
