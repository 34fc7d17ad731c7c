"""Loads and stores: locals, cells, globals, names, attributes, subscripts; stack shuffles; operators."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any

from bytecap.context_types import Frame, Instruction
from bytecap.evaluator.opcodes.control import on_stack, to_bool
from bytecap.objects.base import NULL, Constant, Saved
from bytecap.semantics.operations import binary, compare, is_same, unary
from stagewire.capture import Global


def _load_const(frame: Frame, instruction: Instruction) -> None:
    value = instruction.argval
    known = type(value) in (int, float, bool, str, bytes, type(None), complex)
    frame.push(Constant(value) if known else frame.tracer.objects.constant(value))


def load(frame: Frame, name: str) -> None:
    """Push a local."""
    frame.push(frame.load_local(name))


def store(frame: Frame, name: str) -> None:
    """Pop into a local; or put it back as it was in front of an inlined comprehension (3.12 and later)."""
    value = frame.pop()
    if not isinstance(value, Saved):
        frame.locals[name] = value
        return
    for variables, before in ((frame.locals, value.content), (frame.cells, value.cell)):
        variables.pop(name, None)
        if before is not None:
            variables[name] = before


def _delete_fast(frame: Frame, instruction: Instruction) -> None:
    frame.load_local(instruction.argval)  # type: ignore[arg-type]
    del frame.locals[instruction.argval]  # type: ignore[arg-type]


def _load_deref(frame: Frame, instruction: Instruction) -> None:
    name: Any = instruction.argval
    frame.push(frame.cells[name].get(frame.tracer, name, own=name in frame.function.code.co_cellvars))


def _delete_deref(frame: Frame, instruction: Instruction) -> None:
    name: Any = instruction.argval
    frame.cells[name].get(frame.tracer, name)
    frame.cells[name].set(frame.tracer, None)


def read_global(frame: Frame, name: str) -> Any:
    """A module-level name, else a builtin."""
    tracer, names = frame.tracer, frame.globals
    is_own = names is tracer.objects.frame_globals and names.real is not None
    if is_own and name not in names.real and name not in names.written and hasattr(builtins, name):
        return tracer.objects.builtin(name)
    found = names.lookup(tracer, Constant(name))
    if found is not None:
        return found
    if not hasattr(builtins, name):
        tracer.guards.lacks(tracer.places.of(builtins), name)
        error = tracer.raises(NameError, f"name '{name}' is not defined")
        error.value.given[1]["name"] = Constant(name)  # type: ignore[attr-defined]
        raise error
    return tracer.objects.wrap(getattr(builtins, name), Global(name, "builtins") if names.source is not None else None)


def push_callee(frame: Frame, instruction: Instruction, value: Any) -> None:
    """Push what may be called next, and NULL if it is: from 3.13 on behind it, before in front of it."""
    both = [value, NULL] if sys.version_info >= (3, 13) else [NULL, value]
    frame.stack.extend(both if instruction.arg & 1 else [value])


def _swap(frame: Frame, instruction: Instruction) -> None:
    stack, depth = frame.stack, instruction.arg
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


# The argument of BINARY_OP, in CPython's order (Include/opcode.h, NB_*).
_BINARY_ORDER = ("+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^")


def _binary_op(frame: Frame, instruction: Instruction) -> None:
    right, left = frame.pop(), frame.pop()
    index = instruction.arg
    inplace = index >= len(_BINARY_ORDER)
    symbol = _BINARY_ORDER[index - len(_BINARY_ORDER) if inplace else index]
    frame.push(binary(frame.tracer, symbol, left, right, inplace=inplace))


_COMPARE_ORDER = ("<", "<=", "==", "!=", ">", ">=")
_COMPARE_SHIFT = {(3, 11): 0, (3, 12): 4}.get(sys.version_info[:2], 5)


def _compare_op(frame: Frame, instruction: Instruction) -> None:
    right, left = frame.pop(), frame.pop()
    symbol = _COMPARE_ORDER[instruction.arg >> _COMPARE_SHIFT]
    result = compare(frame.tracer, symbol, left, right)
    if _COMPARE_SHIFT == 5 and instruction.arg & 16:
        result = to_bool(frame, result)
    frame.push(result)


def _is_op(frame: Frame, instruction: Instruction) -> None:
    right, left = frame.pop(), frame.pop()
    frame.push(Constant(is_same(frame.tracer, left, right) != bool(instruction.arg)))


def _contains_op(frame: Frame, instruction: Instruction) -> None:
    container, item = frame.pop(), frame.pop()
    frame.push(Constant(container.contains(frame.tracer, item) != bool(instruction.arg)))


VARIABLES: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("NOP", "RESUME", "CACHE", "PRECALL", "EXTENDED_ARG"), lambda frame, instruction: None),
    **dict.fromkeys(
        ("LOAD_FAST", "LOAD_FAST_CHECK"), lambda frame, step: frame.stack.append(frame.load_local(step.argval))
    ),
    "STORE_FAST": lambda frame, instruction: store(frame, instruction.argval), "LOAD_CONST": _load_const,
    "DELETE_FAST": _delete_fast, "LOAD_DEREF": _load_deref, "DELETE_DEREF": _delete_deref,
    "LOAD_CLASSDEREF": _load_deref, "SWAP": _swap, "BINARY_OP": _binary_op, "COMPARE_OP": _compare_op,
    "IS_OP": _is_op, "CONTAINS_OP": _contains_op,
    "LOAD_GLOBAL": lambda frame, step: push_callee(frame, step, read_global(frame, step.argval)),
    "LOAD_METHOD": lambda frame, step: frame.stack.extend(
        (NULL, frame.pop().get_attribute(frame.tracer, step.argval))
    ),
    "LOAD_ATTR": lambda frame, step: frame.push(frame.pop().get_attribute(frame.tracer, step.argval)),
    "STORE_ATTR": lambda frame, step: frame.pop().set_attribute(frame.tracer, step.argval, frame.pop()),
    "PUSH_NULL": lambda frame, instruction: frame.push(NULL),
    "POP_TOP": on_stack(1, lambda tracer, value: None),
    "BINARY_SUBSCR": on_stack(2, lambda tracer, container, key: container.get_item(tracer, key)),
    "STORE_SUBSCR": on_stack(3, lambda tracer, item, container, key: container.set_item(tracer, key, item)),
    "DELETE_SUBSCR": on_stack(2, lambda tracer, container, key: container.delete_item(tracer, key)),
    "UNARY_NEGATIVE": on_stack(1, lambda tracer, value: unary(tracer, "-", value)),
    "UNARY_POSITIVE": on_stack(1, lambda tracer, value: unary(tracer, "+", value)),
    "UNARY_INVERT": on_stack(1, lambda tracer, value: unary(tracer, "~", value)),
    "UNARY_NOT": on_stack(1, lambda tracer, value: Constant(not value.truth(tracer))),
    "MAKE_CELL": lambda frame, instruction: frame.make_cell(instruction.argval),
    "COPY_FREE_VARS": lambda frame, instruction: frame.cells.update(
        zip(frame.function.code.co_freevars, frame.function.closure, strict=True)
    ),
    "LOAD_CLOSURE": lambda frame, instruction: frame.push(frame.cells[instruction.argval]),
    "LOAD_NAME": lambda frame, instruction: frame.push(read_global(frame, instruction.argval)),
    "STORE_GLOBAL": lambda frame, step: frame.globals.set_item(frame.tracer, Constant(step.argval), frame.pop()),
    "DELETE_GLOBAL": lambda frame, instruction: frame.globals.delete_item(frame.tracer, Constant(instruction.argval)),
    "DELETE_ATTR": lambda frame, instruction: frame.pop().delete_attribute(frame.tracer, instruction.argval),
    "COPY": lambda frame, instruction: frame.push(frame.stack[-instruction.arg]),
    "STORE_DEREF": lambda frame, instruction: frame.cells[instruction.argval].set(frame.tracer, frame.pop()),
}  # fmt: skip
