"""Whether a code object keeps to its stack: CPython trusts it, and a fault writes over other memory.

fault ::= deeper than co_stacksize | below the bottom | two ways with different depths
        | a handler that expects more than there is | control that runs off the end
"""

from __future__ import annotations

import contextlib
import dis
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any
from unittest.mock import patch

from bytecode import Bytecode

from bytecap.breaks.flow import ALWAYS_JUMPS, ENDS
from bytecap.bytecode.decode import Instruction, Program, decode


def stack_faults(code: CodeType) -> list[str]:
    """What is wrong with the use that a function's code makes of its stack.

    >>> stack_faults((lambda x: x + 1).__code__)
    []
    >>> stack_faults((lambda x: x + 1).__code__.replace(co_stacksize=1))
    ['<lambda>, 3 BINARY_OP: the stack has 2 values, co_stacksize is 1']
    """
    program = decode.__wrapped__(code)  # type: ignore[attr-defined]  # not remembered: it holds the code's constants
    return [f"{code.co_qualname}, {where}" for where in _faults(program, code.co_stacksize)]


def _faults(program: Program, size: int) -> Iterator[str]:
    rows = program.instructions
    depths: dict[int, int] = {}
    waiting = [(0, 0)]
    while waiting:
        index, depth = waiting.pop()
        if index == len(rows):
            yield "control runs off the end"
            continue
        where = f"{index} {rows[index].opname}"
        if index in depths:
            if depths[index] != depth:
                yield f"{where}: {depths[index]} values on one way, {depth} on another"
            continue
        depths[index] = depth
        if depth > size:
            yield f"{where}: the stack has {depth} values, co_stacksize is {size}"
        handler = program.handler_at(index)
        if handler is not None:
            if handler.depth > depth:
                yield f"{where}: its handler expects {handler.depth} values of {depth}"
            waiting.append((handler.target, handler.depth + handler.lasti + 1))
        for target, after in _ways(rows[index], index, depth):
            if after < 0:
                yield f"{where}: {depth} values are not enough"
            else:
                waiting.append((target, after))


def _ways(row: Instruction, index: int, depth: int) -> Iterator[tuple[int, int]]:
    """(next instruction, depth before it) of each way on without an exception."""
    argument = row.arg if row.number >= dis.HAVE_ARGUMENT else None
    if row.opname in ENDS:
        if depth + dis.stack_effect(row.number, argument) < 0:
            yield index, -1
        return
    if row.opname == "RETURN_GENERATOR":  # resumed with a value, which `dis` knows since 3.13
        yield index + 1, depth + 1
        return
    if row.target >= 0:
        yield row.target, depth + dis.stack_effect(row.number, argument, jump=True)
    if row.opname not in ALWAYS_JUMPS:
        yield index + 1, depth + dis.stack_effect(row.number, argument, jump=False)


@contextlib.contextmanager
def watched_stacks() -> Iterator[list[str]]:
    """The faults of all code that is assembled meanwhile."""
    faults: list[str] = []
    to_code = Bytecode.to_code

    def watched(bytecode: Bytecode, *args: Any, **settings: Any) -> CodeType:
        code = to_code(bytecode, *args, **settings)
        faults.extend(stack_faults(code))
        if max((end for _, end, _ in code.co_lines()), default=0) != len(code.co_code):
            faults.append(f"{code.co_name}: the table of lines has another length than the code")
        return code

    made: Callable[..., CodeType] = watched
    with patch.object(Bytecode, "to_code", made):
        yield faults
