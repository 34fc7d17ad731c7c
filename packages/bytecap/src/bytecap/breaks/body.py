"""A copy of a function's body that can be entered and left at any instruction.

    body ::= (label? exit? label? instruction)*       handlers and jumps as in the original

Differences to the original: its own cells are free variables (the maker gives them), NULL stands where LOAD_METHOD
and its kin would push a receiver, a bare `super()` names its arguments, and the head (RESUME, MAKE_CELL...) is gone.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from bytecode import Bytecode, CellVar, FreeVar, Instr, Label

from bytecap.breaks.flow import flow_of
from bytecap.bytecode.assembler import LOAD_CELL, Assembler, CellMove
from bytecap.bytecode.decode import PAIRS, Instruction, Program, holds_cell
from bytecap.bytecode.rebuild import IS_EMPTY

_V312 = sys.version_info >= (3, 12)
_V313 = sys.version_info >= (3, 13)


@dataclass(frozen=True)
class Body:
    """The items of a copy. indices: for each instruction, the original's instruction that it belongs to."""

    items: tuple[Any, ...]
    indices: tuple[int, ...]


def body_start(program: Program) -> int:
    """The first instruction behind the head: a function can be entered there and later."""
    names = [instruction.opname for instruction in program.instructions]
    return names.index("RESUME") + 1


def copy_body(code: CodeType, entries: Mapping[int, Label], exits: Mapping[int, Label]) -> Body:
    """The body of `code`.

    entries: labels before instructions. exits: labels outside of the body that control goes to instead of reaching an
    instruction; a jump to its entry is what gets there. Every exit lies behind the body.
    """
    items: list[Any] = []
    indices: list[int] = []

    def add(instruction: Instr, index: int) -> None:
        items.append(instruction)
        indices.append(index)

    source = Bytecode.from_code(_told_apart(code), conserve_exception_block_stackdepth=True)
    flow = flow_of(code)
    rows, start = flow.program.instructions, body_start(flow.program)
    bare_super = set() if _V312 else _bare_super_calls(source)
    index = -1
    for item in source:
        if not isinstance(item, Instr):
            items.append(item)
            continue
        index += 1
        if index < start:
            continue
        if index in exits:
            add(Instr("JUMP_FORWARD", exits[index], location=item.location), index)
        if index in entries:
            items.append(entries[index])
        if item.name == "LOAD_DEREF" and isinstance(item.arg, CellVar) and item.arg.name in flow.empty[index]:
            for made in _check_bound(item.arg.name, item.lineno or code.co_firstlineno):
                items.append(made) if isinstance(made, Label) else add(made, index)
        for made in _normal(code, item, rows[index], index in bare_super):
            add(made, index)
    return Body(tuple(items), tuple(indices))


def _told_apart(code: CodeType) -> CodeType:
    """The code with free variables that are named as no local is, as those of inlined comprehensions can be.

    On CPython 3.13 bytecode counts two of one name once.
    """
    names = tuple(f"free {name}" if name in code.co_varnames else name for name in code.co_freevars)
    return code if names == code.co_freevars else code.replace(co_freevars=names)


def _normal(code: CodeType, item: Instr, row: Instruction, is_bare_super: bool) -> list[Instr]:
    """What stands for one instruction, `row` of the original."""
    where = item.location
    if row.opname == "LOAD_CLOSURE":
        return [Instr(LOAD_CELL, FreeVar(str(row.argval)), location=where)]
    if row.opname in CellMove.PLACES and holds_cell(code, row):
        return [CellMove(CellMove.PLACES[row.opname], FreeVar(str(row.argval)), location=where)]
    if isinstance(item.arg, (CellVar, FreeVar)):
        return [Instr(item.name, FreeVar(str(row.argval)), location=where)]
    if item.name == "LOAD_METHOD":
        return [Instr("LOAD_ATTR", item.arg, location=where), *_null_beside(where)]
    if _V312 and item.name == "LOAD_ATTR" and item.arg[0]:  # type: ignore[index]
        return [Instr("LOAD_ATTR", (False, item.arg[1]), location=where), *_null_beside(where)]  # type: ignore[index]
    if _V312 and item.name == "LOAD_SUPER_ATTR":
        is_method, _, name = item.arg  # type: ignore[misc]
        # Without the second flag `super` looks for the frame's first argument itself.
        loaded = Instr("LOAD_SUPER_ATTR", (False, True, name), location=where)
        return [loaded, *_null_beside(where)] if is_method else [loaded]
    if item.name in PAIRS:
        names: Any = row.argval  # a copy may have more than the 16 variables that such an instruction can tell apart
        return [Instr(half, name, location=where) for half, name in zip(PAIRS[item.name], names, strict=True)]
    if is_bare_super:
        arguments = _super_arguments(code, where) if item.name == "PRECALL" else []
        return [*arguments, Instr(item.name, 2, location=where)]
    if row.number in dis.haslocal:
        return [Instr(item.name, str(row.argval), location=where)]
    return [item.copy()]


def _check_bound(name: str, line: int) -> list[Instr | Label]:
    """Raise UnboundLocalError if an own cell is empty: for a free variable, CPython raises another class."""
    out, bound = Assembler(line), Label()
    out.push_callable(IS_EMPTY)
    out.load_free_cell(name)
    out.call(1)
    out.jump_forward_unless(bound)
    out.emit("LOAD_FAST_CHECK" if _V312 else "LOAD_FAST", name)
    out.pop()
    out.mark(bound)
    return out.instructions


def _null_beside(where: Any) -> list[Instr]:
    """NULL beside the callable on top."""
    made = [Instr("PUSH_NULL", location=where)]
    return made if _V313 else [*made, Instr("SWAP", 2, location=where)]


def _bare_super_calls(source: Bytecode) -> set[int]:
    """PRECALL and CALL of each `super()` (3.11): in a copy, the frame's first variable is not its first argument."""
    found: set[int] = set()
    row = [item for item in source if isinstance(item, Instr)]
    for index, item in enumerate(row[:-1]):
        if item.name == "LOAD_GLOBAL" and item.arg == (True, "super"):
            after = row[index + 1]
            if after.name == "PRECALL" and after.arg == 0:
                found.update((index + 1, index + 2))
    return found


def _super_arguments(code: CodeType, where: Any) -> list[Instr]:
    """Push `__class__` and the first argument."""
    first = code.co_varnames[0]
    own = Instr("LOAD_DEREF", FreeVar(first)) if first in code.co_cellvars else Instr("LOAD_FAST", first)
    return [Instr("LOAD_DEREF", FreeVar("__class__"), location=where), Instr(own.name, own.arg, location=where)]


def implied_reads(code: CodeType) -> frozenset[str]:
    """What a bare `super()` reads beside the variables that instructions name (3.11)."""
    implied = not _V312 and "super" in code.co_names and "__class__" in code.co_freevars
    return frozenset(code.co_varnames[:1]) if implied else frozenset()


_FRAME_READERS = frozenset({"_getframe", "currentframe"})
_BUILTIN_READERS = frozenset({"eval", "exec", *_FRAME_READERS})
# These do so if they are called without arguments.
_LOCALS_READERS = frozenset({"locals", "vars", "dir"})


def reads_own_frame(program: Program) -> bool:
    """Whether the code looks at its own frame, which a copy has other variables in."""
    rows = program.instructions
    for index, instruction in enumerate(rows):
        name = instruction.argval
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and name in _FRAME_READERS:
            return True
        if instruction.opname != "LOAD_GLOBAL":
            continue
        after = rows[index + 1]
        bare = after.opname in ("PRECALL", "CALL") and after.arg == 0
        if name in _BUILTIN_READERS or (bare and name in _LOCALS_READERS):
            return True
    return False
