"""What each instruction does to a frame: one table, put together for the running version of CPython.

A handler takes `(frame, instruction)`; it returns None to go on, or the outcome that ends the run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from bytecap.evaluator.opcodes.building import BUILDING
from bytecap.evaluator.opcodes.calling import CALLING
from bytecap.evaluator.opcodes.control import CONTROL, EXCEPTIONS
from bytecap.evaluator.opcodes.refused import REFUSALS
from bytecap.evaluator.opcodes.variables import VARIABLES
from bytecap.evaluator.opcodes.versions import V312, V313

_COMMON = {**VARIABLES, **BUILDING, **CALLING, **CONTROL, **EXCEPTIONS, **REFUSALS}
_ADDED = {(3, 11): {}, (3, 12): V312, (3, 13): {**V312, **V313}}


def handlers_of(version: tuple[int, int]) -> dict[str, Callable[[Any, Any], Any]]:
    """The table of a version of CPython, such as (3, 11)."""
    return {**_COMMON, **_ADDED.get(version, {})}


HANDLERS = handlers_of(sys.version_info[:2])
