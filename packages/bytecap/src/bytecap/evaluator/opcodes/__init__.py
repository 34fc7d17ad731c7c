"""What each instruction does to a frame: one table, put together for the running version of CPython.

A handler takes `(frame, instruction)`; it returns None to go on, or the outcome that ends the run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from bytecap.context_types import Frame, Instruction, Tracer
from bytecap.errors import UnsupportedInstruction
from bytecap.evaluator.opcodes.building import BUILDING, format_value
from bytecap.evaluator.opcodes.calling import CALLING, call, make_function, set_function_part
from bytecap.evaluator.opcodes.control import CONTROL, EXCEPTIONS, on_stack, to_bool
from bytecap.evaluator.opcodes.variables import VARIABLES, load, push_callee, store
from bytecap.objects.base import NONE, Constant, PythonRaise, Returned, Saved
from bytecap.objects.containers.sequences import SliceValue
from bytecap.objects.functions import SuperValue
from bytecap.objects.iterators import stop_iteration_error

# -- Instructions that CPython 3.12 added or changed.


def _load_super_attr(frame: Frame, instruction: Instruction) -> None:
    receiver, cls, _ = frame.pop(), frame.pop(), frame.pop()
    value = SuperValue(cls.concrete(), receiver).get_attribute(frame.tracer, instruction.argval)  # type: ignore[arg-type]
    push_callee(frame, instruction, value)


def _load_fast_and_clear(frame: Frame, instruction: Instruction) -> None:
    name: Any = instruction.argval
    frame.push(Saved(frame.locals.pop(name, None), frame.cells.pop(name, None)))


def _cleanup_throw(frame: Frame, instruction: Instruction) -> None:
    raised = frame.pop()
    if issubclass(raised.python_type(), StopIteration):
        frame.pop_many(2)
        frame.push(Constant(None))
        frame.push(raised.get_attribute(frame.tracer, "value"))
        return
    raise PythonRaise(raised)


def _as_runtime_error(tracer: Tracer, raised: Any) -> Any:
    return stop_iteration_error(tracer, raised) if issubclass(raised.python_type(), StopIteration) else raised


# CALL_INTRINSIC_1 by argument (Include/internal/pycore_intrinsics.h).
_INTRINSICS: dict[int, Any] = {
    3: on_stack(1, _as_runtime_error), 5: VARIABLES["UNARY_POSITIVE"], 6: BUILDING["LIST_TO_TUPLE"],
}  # fmt: skip


def _call_intrinsic(frame: Frame, instruction: Instruction) -> None:
    intrinsic = _INTRINSICS.get(instruction.arg)
    if intrinsic is None:
        raise UnsupportedInstruction(f"CALL_INTRINSIC_1 {instruction.arg}")
    intrinsic(frame, instruction)


V312 = {
    "LOAD_ATTR": lambda frame, step: push_callee(frame, step, frame.pop().get_attribute(frame.tracer, step.argval)),
    "LOAD_SUPER_ATTR": _load_super_attr, "LOAD_FAST_AND_CLEAR": _load_fast_and_clear,
    "CALL_INTRINSIC_1": _call_intrinsic, "CLEANUP_THROW": _cleanup_throw,
    "END_FOR": on_stack(1 if sys.version_info >= (3, 13) else 2, lambda tracer, *entries: None),
    "END_SEND": on_stack(2, lambda tracer, receiver, value: value),
    "BINARY_SLICE": on_stack(3, lambda tracer, container, *ends: container.get_item(tracer, SliceValue(*ends, NONE))),
    "STORE_SLICE": on_stack(
        4, lambda tracer, item, container, *ends: container.set_item(tracer, SliceValue(*ends, NONE), item)
    ),
    "RETURN_CONST": lambda frame, instruction: Returned(frame.tracer.objects.constant(instruction.argval)),
}  # fmt: skip

# -- and 3.13


def _both(first: Callable[[Frame, str], None], second: Callable[[Frame, str], None]) -> Any:
    """Two instructions on a local in one."""

    def handler(frame: Frame, instruction: Instruction) -> None:
        names: Any = instruction.argval
        first(frame, names[0])
        second(frame, names[1])

    return handler


def _set_function_attribute(frame: Frame, instruction: Instruction) -> None:
    function, value = frame.pop(), frame.pop()
    set_function_part(frame, function, instruction.arg, value)
    frame.push(function)


V313 = {
    "LOAD_FAST_LOAD_FAST": _both(load, load), "STORE_FAST_STORE_FAST": _both(store, store),
    "STORE_FAST_LOAD_FAST": _both(store, load), "SET_FUNCTION_ATTRIBUTE": _set_function_attribute,
    "CALL_KW": lambda frame, instruction: call(frame, instruction.arg, frame.pop().concrete()),
    "FORMAT_WITH_SPEC": on_stack(2, lambda tracer, value, spec: format_value(tracer, value, 0, spec.concrete())),
    "TO_BOOL": lambda frame, instruction: frame.push(to_bool(frame, frame.pop())),
    "CONVERT_VALUE": lambda frame, step: frame.push(format_value(frame.tracer, frame.pop(), step.arg, "")),
    "FORMAT_SIMPLE": on_stack(1, lambda tracer, value: format_value(tracer, value, 0, "")),
    "MAKE_FUNCTION": lambda frame, instruction: frame.push(make_function(frame, frame.pop().concrete())),
}  # fmt: skip

# -- The tables.

_CLASS_BODY = "only in the body of a class or module"
REFUSED: dict[str, str] = {
    "STORE_NAME": _CLASS_BODY, "DELETE_NAME": _CLASS_BODY, "SETUP_ANNOTATIONS": _CLASS_BODY,
    "LOAD_LOCALS": _CLASS_BODY, "LOAD_FROM_DICT_OR_DEREF": _CLASS_BODY, "LOAD_FROM_DICT_OR_GLOBALS": _CLASS_BODY,
    "PRINT_EXPR": "only at the interactive prompt", "CALL_INTRINSIC_2": "type parameters and except*",
    "CHECK_EG_MATCH": "except*", "PREP_RERAISE_STAR": "except*", "IMPORT_STAR": "import *",
    **dict.fromkeys(
        ("GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "END_ASYNC_FOR", "BEFORE_ASYNC_WITH", "ASYNC_GEN_WRAP"), "await"
    ),
}  # fmt: skip
"""Instructions without a meaning here, and why: they end the capture in front of them."""


def _refuse(frame: Any, instruction: Any) -> None:
    raise UnsupportedInstruction(f"{REFUSED[instruction.opname]} ({instruction.opname})")


_COMMON = {**VARIABLES, **BUILDING, **CALLING, **CONTROL, **EXCEPTIONS, **dict.fromkeys(REFUSED, _refuse)}
_ADDED = {(3, 11): {}, (3, 12): V312, (3, 13): {**V312, **V313}}


def handlers_of(version: tuple[int, int]) -> dict[str, Callable[[Any, Any], Any]]:
    """The table of a version of CPython, such as (3, 11)."""
    return {**_COMMON, **_ADDED.get(version, {})}


HANDLERS = handlers_of(sys.version_info[:2])
