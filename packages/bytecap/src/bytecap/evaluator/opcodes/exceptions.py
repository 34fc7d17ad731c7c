"""try, except, finally, raise, with."""

from __future__ import annotations

from bytecap.context_types import Frame, Instruction
from bytecap.evaluator.opcodes.refused import refuse
from bytecap.objects.base import Value
from bytecap.objects.class_lookup import static_lookup
from bytecap.objects.classes import ClassValue
from bytecap.objects.constant import Constant
from bytecap.objects.containers.sequences import TupleValue
from bytecap.objects.signals import Handled, PythonRaise
from bytecap.semantics.attributes import bind


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
    frame.push(Constant(_matches(frame, frame.stack[-1], wanted)))


def _matches(frame: Frame, raised: Value, wanted: Value) -> bool:
    classes = wanted.values(frame.tracer) if isinstance(wanted, TupleValue) else [wanted]
    for cls in classes:
        if not isinstance(cls, ClassValue) or not issubclass(cls.real, BaseException):
            complaint = "catching classes that do not inherit from BaseException is not allowed"
            raise frame.tracer.raises(TypeError, complaint)
    return any(issubclass(raised.python_type(), cls.concrete()) for cls in classes)


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


_ASYNC = ("GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "END_ASYNC_FOR", "BEFORE_ASYNC_WITH", "ASYNC_GEN_WRAP")

EXCEPTIONS = {
    "PUSH_EXC_INFO": _push_exc_info, "POP_EXCEPT": _pop_except, "CHECK_EXC_MATCH": _check_exc_match,
    "RERAISE": _reraise, "RAISE_VARARGS": _raise_varargs, "BEFORE_WITH": _before_with,
    "WITH_EXCEPT_START": _with_except_start,
    "CHECK_EG_MATCH": refuse("except*"), "PREP_RERAISE_STAR": refuse("except*"),
    "IMPORT_STAR": refuse("import *"), **{name: refuse("await") for name in _ASYNC},
}  # fmt: skip
