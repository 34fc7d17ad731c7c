"""What each instruction does to a frame: one table, put together for the running version of CPython.

A handler takes `(frame, instruction)`; it returns None to go on, or the outcome that ends the run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from bytecap.opcodes.building import BUILDING
from bytecap.opcodes.calling import CALLING
from bytecap.opcodes.control import CONTROL
from bytecap.opcodes.exceptions import EXCEPTIONS
from bytecap.opcodes.variables import VARIABLES
from bytecap.opcodes.versions import V312, V313

_COMMON = {**VARIABLES, **BUILDING, **CALLING, **CONTROL, **EXCEPTIONS}
_ADDED = {(3, 11): {}, (3, 12): V312, (3, 13): {**V312, **V313}}

HANDLERS: dict[str, Callable[[Any, Any], Any]] = {
    **_COMMON,
    **_ADDED.get(sys.version_info[:2], {}),
}
