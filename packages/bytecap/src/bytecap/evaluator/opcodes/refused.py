"""Instructions without a meaning here, and why."""

from __future__ import annotations

from typing import Any

from bytecap.errors import UnsupportedInstruction

_CLASS_BODY = "only in the body of a class or module"
_TYPE_PARAMETERS = "type parameters and except*"
REFUSED: dict[str, str] = {
    "STORE_NAME": _CLASS_BODY, "DELETE_NAME": _CLASS_BODY, "SETUP_ANNOTATIONS": _CLASS_BODY,
    "LOAD_LOCALS": _CLASS_BODY, "LOAD_FROM_DICT_OR_DEREF": _CLASS_BODY, "LOAD_FROM_DICT_OR_GLOBALS": _CLASS_BODY,
    "PRINT_EXPR": "only at the interactive prompt", "CALL_INTRINSIC_2": _TYPE_PARAMETERS,
}  # fmt: skip

# What no code object holds: instructions of the compiler alone, and those that the interpreter puts in their place.
INTERNAL = frozenset(
    {"JUMP", "JUMP_NO_INTERRUPT", "LOAD_SUPER_METHOD", "LOAD_ZERO_SUPER_ATTR", "LOAD_ZERO_SUPER_METHOD", "POP_BLOCK",
     "SETUP_CLEANUP", "SETUP_FINALLY", "SETUP_WITH", "STORE_FAST_MAYBE_NULL", "RESERVED", "INTERPRETER_EXIT",
     "ENTER_EXECUTOR", "EXIT_INIT_CHECK"}
)  # fmt: skip


def is_internal(opname: str) -> bool:
    """Whether no code object that `dis` shows has this instruction."""
    return opname in INTERNAL or opname.startswith("INSTRUMENTED_")


def refuse(what: str) -> Any:
    """A handler that ends the capture before the instruction."""

    def handler(frame: Any, instruction: Any) -> None:
        raise UnsupportedInstruction(f"{what} ({instruction.opname})")

    return handler


REFUSALS = {opname: refuse(reason) for opname, reason in REFUSED.items()}
