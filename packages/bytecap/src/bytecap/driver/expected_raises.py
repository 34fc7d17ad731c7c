"""Under fullgraph, a frame that is expected to raise: it runs plain, and must raise.

The evaluator found that the captured code raises; the program's own exception is better than a coded one, so the
frame runs plain. Should it return after all, the evaluator was wrong, and the refusal is raised instead of a result
that no graph computed.
"""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType
from typing import Any

from bytecap.bytecode.assembler import Assembler, assemble
from bytecap.errors import RaisedInCapture


def raising_code(function: FunctionType, error: RaisedInCapture) -> CodeType:
    """Code with the arguments of `function` that calls it, and raises `error` if it returns."""
    code = function.__code__
    out = Assembler(code.co_firstlineno)
    positional = code.co_varnames[: code.co_argcount]
    slot = code.co_argcount + code.co_kwonlyargcount
    named = code.co_varnames[code.co_argcount : slot]
    for name in positional:
        out.load_local(name)
    out.build("TUPLE", len(positional))
    for name in named:
        out.constant(name)
        out.load_local(name)
    out.build("MAP", len(named))
    rest = 0
    for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS):
        if code.co_flags & flag:
            out.load_local(code.co_varnames[slot + rest])
            rest += 1
        else:
            out.constant(None)
    out.call_function(_must_raise, function, error, arguments=4)
    out.return_top()
    return assemble(code, out.instructions)


def _must_raise(
    args: tuple[Any, ...],
    named: dict[str, Any],
    more: tuple[Any, ...] | None,
    extra: dict[str, Any] | None,
    function: FunctionType,
    error: RaisedInCapture,
) -> None:
    function(*args, *(more or ()), **named, **(extra or {}))
    raise error
