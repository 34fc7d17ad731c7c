"""Calls, function objects, imports."""

from __future__ import annotations

import builtins
import sys
from typing import Any

from bytecap.context_types import Frame, Instruction
from bytecap.evaluator.calls import expand_mapping
from bytecap.evaluator.opcodes.building import function_text
from bytecap.guards.guard_set import is_exempt, module_place
from bytecap.objects.base import NULL, PythonRaise, collect, run
from bytecap.objects.functions import FunctionValue
from stagewire.capture import Global


def _callee(frame: Frame) -> tuple[Any, list[Any]]:
    """Pop the callable and what stands beside it: NULL, or (as a method) self."""
    second, first = frame.pop(), frame.pop()
    if sys.version_info >= (3, 13):
        return first, [] if second is NULL else [second]
    return (second, []) if first is NULL else (first, [second])


def call(frame: Frame, count: int, names: tuple[str, ...]) -> None:
    """Call with `count` arguments on the stack, the last of them named."""
    args = frame.pop_many(count)
    callee, leading = _callee(frame)
    split = count - len(names)
    kwargs = dict(zip(names, args[split:], strict=True))
    frame.push(callee.call(frame.tracer, [*leading, *args[:split]], kwargs))


def _call(frame: Frame, instruction: Instruction) -> None:
    names, frame.keyword_names = frame.keyword_names, ()
    call(frame, instruction.arg, names)


def _call_function_ex(frame: Frame, instruction: Instruction) -> None:
    tracer = frame.tracer
    kwargs = expand_mapping(tracer, frame.pop()) if instruction.arg & 1 else {}
    star = frame.pop()
    callee, leading = _callee(frame)
    assert not leading
    if not star.is_iterable():
        kind = star.python_type().__name__
        complaint = f"{function_text(callee)} argument after * must be an iterable, not {kind}"
        raise tracer.raises(TypeError, complaint)
    args = collect(tracer, star)
    frame.push(callee.call(tracer, args, kwargs))


def make_function(frame: Frame, code: Any) -> FunctionValue:
    """A new function of the frame's module."""
    return FunctionValue(code, frame.globals, name=code.co_name)


def set_function_part(frame: Frame, function: FunctionValue, flag: int, value: Any) -> None:
    """What the instructions give a new function besides its code, by the flags of MAKE_FUNCTION."""
    match flag:
        case 1:
            function.defaults = tuple(value.values(frame.tracer))
        case 2:
            function.kwdefaults = expand_mapping(frame.tracer, value)
        case 4:
            function.annotate(frame.tracer, value)
        case 8:
            function.closure = tuple(value.values(frame.tracer))


def _make_function(frame: Frame, instruction: Instruction) -> None:
    function = make_function(frame, frame.pop().concrete())
    for flag in (8, 4, 2, 1):
        if instruction.arg & flag:
            set_function_part(frame, function, flag, frame.pop())
    frame.push(function)


def _import_name(frame: Frame, instruction: Instruction) -> None:
    tracer = frame.tracer
    names, level = frame.pop().concrete(), frame.pop().concrete()
    home = frame.globals.real or {}
    try:
        module = run(tracer, __import__, (instruction.argval, home, None, names, level))
    except PythonRaise:  # a module of this name may be there in the next call
        if not level:
            tracer.guards.has_key(Global("modules", "sys"), instruction.argval, instruction.argval in sys.modules)
        raise
    is_guarded = sys.modules.get(module.__name__) is module and not is_exempt(module.__name__)
    frame.push(tracer.objects.wrap(module, module_place(module) if is_guarded else None))


CALLING = {
    "LOAD_BUILD_CLASS": lambda frame, step: frame.push(frame.tracer.objects.wrap(builtins.__build_class__, None)),
    "KW_NAMES": lambda frame, step: setattr(frame, "keyword_names", step.argval),
    "CALL": _call, "CALL_FUNCTION_EX": _call_function_ex, "MAKE_FUNCTION": _make_function,
    "IMPORT_NAME": _import_name,
    "IMPORT_FROM": lambda frame, step: frame.push(frame.stack[-1].get_attribute(frame.tracer, step.argval)),
}  # fmt: skip
