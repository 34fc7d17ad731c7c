"""Code objects as immutable instruction tables.

    program     ::= instruction* handler*
    instruction ::= opname arg argval target line      # target: index of the instruction a jump goes to
    handler     ::= start end target depth push_lasti  # instruction indices, end exclusive

Caches, EXTENDED_ARG and specialised forms are gone: what remains is what `dis` documents.
"""

from __future__ import annotations

import bisect
import dis
import inspect
import opcode
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from types import CodeType
from typing import Any, TypeVar

from bytecap.context_types import Frame

Result = TypeVar("Result")
_EXTENDED_ARG = opcode.EXTENDED_ARG
_HAS_CONST = frozenset(opcode.hasconst)
_HAS_NAME = frozenset(opcode.hasname)
_IN_SLOT = frozenset((*opcode.haslocal, *opcode.hasfree))
_HAS_JUMP = frozenset(opcode.hasjrel)
_NAMES = tuple(opcode.opname)


# Inline cache entries after each opcode (a list in 3.11 and 3.12, a dict by name in 3.13).
_ENTRIES: Any = opcode._inline_cache_entries  # type: ignore[attr-defined]
_CACHES = [_ENTRIES.get(name, 0) for name in _NAMES] if isinstance(_ENTRIES, dict) else _ENTRIES

# The names whose argument carries a flag beside the index of a name.
_NAME_SHIFT = {"LOAD_GLOBAL": 1}
if sys.version_info >= (3, 12):
    _NAME_SHIFT |= {"LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 2}


def per_code(function: Callable[[CodeType], Result]) -> Callable[[CodeType], Result]:
    """Remember the result as long as the code object lives; equal ones may be of other files, with other constants."""
    known: dict[int, tuple[weakref.ref[CodeType], Result]] = {}

    @wraps(function)
    def result_of(code: CodeType) -> Result:
        key = id(code)
        found = known.get(key)
        if found is None:
            found = known[key] = weakref.ref(code, lambda _: known.pop(key)), function(code)
        return found[1]

    return result_of


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: `argval` is the name, constant or local that `arg` stands for."""

    opname: str
    arg: int
    argval: object
    target: int
    line: int
    offset: int

    @property
    def number(self) -> int:
        """The opcode."""
        return opcode.opmap[self.opname]


@dataclass(frozen=True, slots=True)
class Handler:
    """One entry of the exception table, in instruction indices."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


@dataclass(frozen=True, slots=True)
class Program:
    """A code object, ready to evaluate."""

    instructions: tuple[Instruction, ...]
    handlers: tuple[Handler, ...]

    def handler_at(self, index: int) -> Handler | None:
        """The innermost handler that covers the instruction."""
        for handler in self.handlers:
            if handler.start <= index < handler.end:
                return handler
        return None


def argument_names(code: CodeType) -> tuple[str, ...]:
    """The fast locals that are arguments, `*args` and `**kwargs` included."""
    variadic = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + variadic.bit_count()]


def holds_cell(code: CodeType, row: Instruction) -> bool:
    """Whether the slot of the frame that a fast instruction names holds a cell there."""
    if row.arg >= len(code.co_varnames):
        return True
    return row.argval == code.co_varnames[row.arg] and row.argval in code.co_cellvars


def _argval(code: CodeType, names: tuple[str, ...], op: int, arg: int) -> object:
    if op in _HAS_CONST:
        return code.co_consts[arg]
    if op in _HAS_NAME:
        return code.co_names[arg >> _NAME_SHIFT.get(_NAMES[op], 0)]
    if _NAMES[op] in PAIRS:
        return names[arg >> 4], names[arg & 15]
    return names[arg] if op in _IN_SLOT else arg


PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
}
"""Two-in-one forms of 3.13: they hold two local indices in one argument, whatever its size."""


@per_code
def decode(code: CodeType) -> Program:
    """The instruction table of `code`.

    >>> [i.opname for i in decode((lambda x: x).__code__).instructions][-1]
    'RETURN_VALUE'
    """
    raw, first = code.co_code, code.co_firstlineno
    # Fast locals, cells and free variables, in the order of the frame's slots.
    names = tuple(dict.fromkeys((*code.co_varnames, *code.co_cellvars))) + code.co_freevars
    lines = {at: line or first for start, end, line in code.co_lines() for at in range(start, end, 2)}
    rows: list[tuple[str, int, object, int, int]] = []
    index_of: dict[int, int] = {}
    position, arg, start = 0, 0, 0
    while position < len(raw):
        op = raw[position]
        arg = (arg << 8) | raw[position + 1]
        if op == _EXTENDED_ARG:
            index_of[position] = len(rows)
            position += 2
            continue
        after = position + 2 + 2 * _CACHES[op]
        name = _NAMES[op]
        jump = -1
        if op in _HAS_JUMP:
            jump = after + (-2 * arg if "BACKWARD" in name else 2 * arg)
        value = _argval(code, names, op, arg)
        index_of[position] = len(rows)
        rows.append((name, arg, value, jump, position))
        start, arg, position = after, 0, after
    index_of[start] = len(rows)
    instructions = [
        Instruction(name, arg, value, index_of.get(jump, -1), lines.get(offset, 0), offset)
        for name, arg, value, jump, offset in rows
    ]
    program = Program(tuple(instructions), _handlers(code, index_of, raw))
    for (index, name), variable in _inlined_variables(code, program).items():
        instructions[index] = _of_variable(instructions[index], name, variable)
    for index, row in enumerate(instructions):
        if row.opname == "LOAD_FAST" and holds_cell(code, row):
            instructions[index] = replace(row, opname="LOAD_CLOSURE")  # 3.13 has one instruction for both
    return replace(program, instructions=tuple(instructions))


_BEFORE_COMPREHENSION = frozenset({"LOAD_FAST_AND_CLEAR", "MAKE_CELL", "SWAP"})


def _inlined_variables(code: CodeType, program: Program) -> dict[tuple[int, str], str]:
    """Variables of inlined comprehensions (3.12 and later), by instruction, where the function has cells of the name.

    Such a slot holds the function's cell, or that of a comprehension; in one that needs no cell, it holds the variable:

        LOAD_FAST_AND_CLEAR+ SWAP (body, under a handler) SWAP STORE_FAST+         handler: ... SWAP STORE_FAST+ RERAISE
    """
    rows = program.instructions
    shared = frozenset(code.co_varnames).intersection(code.co_cellvars)
    found: dict[tuple[int, str], str] = {}
    for start, row in enumerate(rows):
        if row.opname != "LOAD_FAST_AND_CLEAR" or row.argval not in shared:
            continue
        name, body = str(row.argval), start
        while rows[body].opname in _BEFORE_COMPREHENSION:
            body += 1
        makes_cell = any(each.opname == "MAKE_CELL" and each.argval == name for each in rows[start:body])
        cleanup = program.handler_at(body).target  # type: ignore[union-attr]
        end = max(handler.end for handler in program.handlers if handler.target == cleanup)
        for first, last in ((start, _store_of(rows, name, end)), (cleanup, _store_of(rows, name, cleanup))):
            # Inner comprehensions come later, and may have a cell of the name.
            variable = name if makes_cell else f"{name} of a comprehension"
            found.update(((index, name), variable) for index in range(first, last + 1))
    return found


def _store_of(rows: tuple[Instruction, ...], name: str, start: int) -> int:
    """The next instruction that stores a fast local of the name."""
    while "STORE_FAST" not in rows[start].opname or name not in _names_of(rows[start]):
        start += 1
    return start


def _names_of(row: Instruction) -> tuple[object, ...]:
    return row.argval if isinstance(row.argval, tuple) else (row.argval,)


def _of_variable(row: Instruction, name: str, variable: str) -> Instruction:
    """The instruction on a variable in place of the fast local of the name."""
    if row.number not in dis.haslocal or name not in _names_of(row):
        return row
    names = tuple(variable if each == name else each for each in _names_of(row))
    return replace(row, argval=names if isinstance(row.argval, tuple) else names[0])


def _handlers(code: CodeType, index_of: dict[int, int], raw: bytes) -> tuple[Handler, ...]:
    def index_at(offset: int) -> int:
        while offset not in index_of and offset < len(raw):
            offset += 2
        return index_of[offset]

    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return tuple(Handler(index_at(e.start), index_at(e.end), index_at(e.target), e.depth, e.lasti) for e in entries)


class InstructionTrace:
    """Which instructions the frame came to, in order, and where its stack was empty.

    limit: the count of instructions after which it stops, before the next one; None for no stop.
    nodes: how many nodes the graph had in front of each.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.indices: list[int] = []
        self.bare: list[int] = []
        self.nodes: list[int] = []

    def reaches_limit(self, frame: Frame) -> bool:
        """Note the instruction that is next; True to stop before it."""
        if len(self.indices) == self.limit:
            return True
        if not frame.stack:
            self.bare.append(len(self.indices))
        self.indices.append(frame.pc)
        self.nodes.append(len(frame.tracer.graphs[0].nodes))
        return False

    def to_node(self, position: int) -> InstructionTrace:
        """The way to the instruction that made a node of the graph."""
        way, count = InstructionTrace(), bisect.bisect_right(self.nodes, position)
        way.indices, way.nodes = self.indices[:count], self.nodes[:count]
        way.bare = [at for at in self.bare if at < count]
        return way

    def stops(self, first: int) -> Iterator[int]:
        """Where to stop for a break at the last instruction: there, and where that cannot be, earlier and earlier.

        first: the count from which the frame can be left at all.
        """
        last = len(self.indices) - 1
        yield max(last, first)
        earlier = [count for count in self.bare if first < count < last]
        while earlier:
            yield earlier[-1]
            del earlier[len(earlier) // 2 :]
        yield first
