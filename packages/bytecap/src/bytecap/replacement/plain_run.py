"""The function itself, run plain in the place of a graph call that raised or whose checks failed.

    frame ::= try: outputs = graph(inputs)
              except Exception: the function itself, with the frame's arguments
              if outputs is None: the function itself                           a check failed (`bytecap.driver.undo`)
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

from bytecode import BinaryOp

from bytecap.bytecode.assembler import Assembler, assemble
from bytecap.bytecode.decode import argument_names
from bytecap.events import CaptureWarning
from bytecap.hook import plain
from stagewire.errors import DATA_ERRORS, PartlyDone, StageError

_log = logging.getLogger("bytecap")
_OUTPUTS = ".outputs"


UNDO = ".undo"
"""The local with what `noted_states` gave."""


def emit_guarded_call(
    out: Assembler, code: CodeType, emit_call: Callable[[], None], undo: str | None, *, checked: bool = False
) -> None:
    """Push what the call of a graph gives; the stack is empty before. Where it raises, or gives None if it is
    `checked`, return what the function itself gives. undo: the local of what is called before that."""

    def handle() -> None:  # the error is on the stack
        _emit_plain_run(out, code, undo)

    with out.catching(handle):  # which returns: what the call gives stays on the stack
        emit_call()
    if not checked:
        return
    out.store_local(_OUTPUTS)
    out.load_local(_OUTPUTS)
    with out.if_top_is(None):
        out.constant(None)
        _emit_plain_run(out, code, undo)
    out.load_local(_OUTPUTS)
    out.let_go(_OUTPUTS)


def noted_states(*generators: Any) -> Callable[[], None]:
    """What gives generators of random numbers the states that they have now."""
    states = [generator.getstate() for generator in generators]

    def restore() -> None:
        for generator, state in zip(generators, states, strict=True):
            generator.setstate(state)

    return restore


def _emit_plain_run(out: Assembler, code: CodeType, undo: str | None) -> None:
    """Pop an error or None, and return what the function itself gives; the frame lets go of its arguments."""
    out.constant(code)
    out.load_closure(code.co_freevars)
    (out.constant if undo is None else out.load_local)(undo)
    out.call_function(plain_function, arguments=4)
    out.top_as_callable()
    with out.unseen():
        _load_arguments(out, code)
        out.emit("CALL_FUNCTION_EX", 1)
        out.return_top()


def plain_function(
    error: BaseException | None, code: CodeType, closure: tuple[CellType, ...], undo: Callable[[], None] | None
) -> Callable[..., Any]:
    """The function of the frame that calls this, all of whose arguments are given; nobody captures while it runs.

    error: what the graph raised. undo: takes back what was drawn for it.

    Raises what no plain run may follow: an interrupt, the error of a graph that has changed its inputs, and a fault of
    the code that a stage made. A fault that may have its cause in the data is raised when the function itself raises
    nothing. The user is told of what else no data causes: of a stage's error at once, of any other (a fault in a kernel
    of a back end of Python's) when the function itself raises nothing.
    """
    function: Callable[..., Any] = FunctionType(code, sys._getframe(1).f_globals, code.co_name, None, closure or None)
    if isinstance(error, PartlyDone):
        raise error.error
    if error is not None and not isinstance(error, Exception):
        raise error
    if undo is not None:
        undo()
    if isinstance(error, StageError) and error.is_fault:
        if isinstance(error.__cause__, DATA_ERRORS):
            return plain(_raising(function, error))
        raise error
    if error is not None:
        text = f"the graph of {code.co_qualname} raised, the function runs plain: {type(error).__name__}: {error}"
        _log.info("%s", text)
        if isinstance(error, StageError) and not isinstance(error, DATA_ERRORS):
            warnings.warn(text, CaptureWarning, stacklevel=2)
        elif not isinstance(error, DATA_ERRORS):
            return plain(_telling(function, text))
    return plain(function)


def _raising(function: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        function(*args, **kwargs)
        raise error

    return run


def _telling(function: Callable[..., Any], text: str) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        warnings.warn(text, CaptureWarning, stacklevel=2)
        return result

    return run


def raising_code(function: FunctionType, error: BaseException) -> CodeType:
    """Code with the arguments of `function` that calls it, and raises `error` if it returns.

    For a frame that is expected to raise, under fullgraph: the program's own exception is better than a coded one.
    Should it return after all, the evaluator was wrong, and the refusal is raised instead of a result that no graph
    computed.
    """
    code = function.__code__
    out = Assembler(code.co_firstlineno)
    out.push_callable(_raising(function, error))
    _load_arguments(out, code)
    out.emit("CALL_FUNCTION_EX", 1)
    out.return_top()
    return assemble(code, out.instructions)


def _load_arguments(out: Assembler, code: CodeType) -> None:
    """Push the positional arguments and those by name; the frame lets go of them."""
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    more = list(argument_names(code)[code.co_argcount + code.co_kwonlyargcount :])
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
    out.let_go(*argument_names(code))
