"""The function itself, run plain in the place of a graph call that raised or whose checks failed.

    frame ::= try: outputs = graph(inputs)
              except Exception: the function itself, with the frame's arguments
              if outputs is None: the function itself                           a check failed (`bytecap.undo`)
              what follows the graph

Nothing of the frame has happened when its graph is called, and a graph that raises has changed nothing: so the
function can start again, and does with its own effects and handlers what it does in eager. An exception is its own,
from its own line. A segment behind a graph break is a function that starts there: it runs plain from there.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

from bytecode import BinaryOp, Label

from bytecap.assembler import Assembler
from bytecap.events import CaptureWarning
from bytecap.hook import plain
from bytecap.resume.flow import argument_count
from stagewire.errors import PartlyDone, StageError

_log = logging.getLogger("bytecap")
_OUTPUTS = ".outputs"
_TEXT = ".raised"
_RESULT = ".result"
_OF_DATA = (ArithmeticError, LookupError, RuntimeError, ValueError)


def emit_guarded_call(out: Assembler, code: CodeType, emit_call: Callable[[], None], *, checked: bool) -> None:
    """Push what the call of a graph gives; the stack is empty before. Where it raises, or gives None if it is
    `checked`, return what the function itself gives."""

    def handle() -> None:
        out.call_function(noted, code, arguments=1)
        out.store_local(_TEXT)
        _emit_plain_run(out, code)
        out.store_local(_RESULT)
        out.load_local(_TEXT)
        out.call_function(tell_quiet, arguments=1)
        out.pop()
        out.load_local(_RESULT)
        out.return_top()

    with out.catching(handle):
        emit_call()
        out.store_local(_OUTPUTS)
    if checked:
        holds = Label()
        out.load_local(_OUTPUTS)
        out.constant(None)
        out.is_same()
        out.jump_forward_if(False, holds)
        _emit_plain_run(out, code)
        out.return_top()
        out.mark(holds)
    out.load_local(_OUTPUTS)
    out.constant(None)
    out.store_local(_OUTPUTS)


def noted(error: BaseException, code: CodeType) -> str:
    """What the log says where a graph raised and the plain run does not. Raises what no plain run may follow: an
    interrupt, and the error of a graph that has changed its inputs. An error of a stage that is no error of Python's
    is no data's: it is told at once."""
    if isinstance(error, PartlyDone):
        raise error.error
    if not isinstance(error, Exception):
        raise error
    text = f"the graph of {code.co_qualname} raised {type(error).__name__}: {error}"
    if isinstance(error, StageError) and not isinstance(error, _OF_DATA):
        warnings.warn(f"runs plain, after a fault: {text}", CaptureWarning, stacklevel=2)
    return text


def tell_quiet(text: str) -> None:
    """The graph raised, and the function itself gave a result: a handler of the program caught the error, or the fault
    was the graph's."""
    _log.info("%s; the function itself, run plain, does not", text)


def _emit_plain_run(out: Assembler, code: CodeType) -> None:
    """Push what the function itself gives; the stack is empty before, and the frame lets go of its arguments."""
    with out.unseen():
        out.push_made(lambda: _load_function(out, code))
        _load_arguments(out, code)
        out.emit("CALL_FUNCTION_EX", 1)
        out.store_local(_RESULT)
    out.load_local(_RESULT)


def _load_function(out: Assembler, code: CodeType) -> None:
    out.constant(code)
    out.load_closure(code.co_freevars)
    out.call_function(_plain_function, arguments=2)


def _plain_function(code: CodeType, closure: tuple[CellType, ...]) -> Callable[..., Any]:
    """The function of the frame that calls this, all of whose arguments are given; nobody captures while it runs."""
    return plain(FunctionType(code, sys._getframe(1).f_globals, code.co_name, None, closure or None))


def _load_arguments(out: Assembler, code: CodeType) -> None:
    """Push the positional arguments and those by name; the frame lets go of them."""
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    more = list(code.co_varnames[code.co_argcount + code.co_kwonlyargcount : argument_count(code)])
    for name in code.co_varnames[: code.co_argcount]:
        out.load_local(name)
    out.build("TUPLE", code.co_argcount)
    if code.co_flags & 4:
        out.load_local(more.pop(0))
        out.emit("BINARY_OP", BinaryOp.ADD)
    for name in named:
        out.constant(name)
        out.load_local(name)
    out.build("MAP", len(named))
    if code.co_flags & 8:
        out.load_local(more.pop())
        out.emit("DICT_UPDATE", 1)
    for name in code.co_varnames[: argument_count(code)]:
        out.constant(None)
        out.store_local(name)
