"""What each instruction does to a frame: one table, put together for the running version of CPython.

A handler takes `(frame, instruction)`; it returns None to go on, or the outcome that ends the run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from bytecap.errors import UnsupportedInstruction
from bytecap.evaluator.opcodes.building import BUILDING
from bytecap.evaluator.opcodes.calling import CALLING
from bytecap.evaluator.opcodes.control import CONTROL, EXCEPTIONS
from bytecap.evaluator.opcodes.variables import VARIABLES
from bytecap.evaluator.opcodes.versions import V312, V313

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
