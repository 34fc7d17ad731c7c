"""Instructions of replacement code, one vocabulary for all versions of CPython, and their assembly."""

from __future__ import annotations

import contextlib
import inspect
import opcode
import sys
from collections.abc import Callable, Iterator
from functools import partialmethod
from types import CodeType
from typing import Any, ClassVar

from bytecode import BinaryOp, Bytecode, FreeVar, Instr, Intrinsic1Op, Label, TryBegin, TryEnd
from bytecode.instr import InstrLocation

from bytecap.bytecode.decode import argument_names, decode
from bytecap.bytecode.rebuild import without_first_entry

_V312 = sys.version_info >= (3, 12)
_V313 = sys.version_info >= (3, 13)

LOAD_CELL = "LOAD_FAST" if _V313 else "LOAD_CLOSURE"
"""The instruction that pushes a cell instead of its content."""

SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""The flags of code whose call makes a generator or a coroutine, which is suspended and resumed."""

_BINARY = {
    "+": BinaryOp.ADD, "-": BinaryOp.SUBTRACT, "*": BinaryOp.MULTIPLY, "//": BinaryOp.FLOOR_DIVIDE,
    "%": BinaryOp.REMAINDER, "**": BinaryOp.POWER,
}  # fmt: skip


class Assembler:
    """A growing list of instructions."""

    def __init__(self, line: int) -> None:
        self.instructions: list[Any] = []
        self._line = line

    def emit(self, name: str, *arg: Any) -> None:
        """Append one instruction."""
        self.instructions.append(Instr(name, *arg, lineno=self._line))

    constant = partialmethod(emit, "LOAD_CONST")  # push an object
    load_local = partialmethod(emit, "LOAD_FAST")  # push a local variable
    store_local = partialmethod(emit, "STORE_FAST")  # pop into a local variable
    delete_local = partialmethod(emit, "DELETE_FAST")  # make a local variable unbound
    store_attribute = partialmethod(emit, "STORE_ATTR")  # pop the object, pop the value, store the attribute
    subscript = partialmethod(emit, "BINARY_SUBSCR")  # container key -> container[key]
    is_same = partialmethod(emit, "IS_OP", 0)  # left right -> left is right
    copy = partialmethod(emit, "COPY", 1)  # duplicate the top
    pop = partialmethod(emit, "POP_TOP")  # drop the top
    call_with_tuple = partialmethod(emit, "CALL_FUNCTION_EX", 0)  # call with the items of the tuple on top
    jump_forward = partialmethod(emit, "JUMP_FORWARD")  # go on at a later label
    jump_backward = partialmethod(emit, "JUMP_BACKWARD")  # go on at an earlier label
    unpack = partialmethod(emit, "UNPACK_SEQUENCE")  # pop a sequence, push its items so that the first is on top
    return_top = partialmethod(emit, "RETURN_VALUE")  # return the top

    def load_free(self, name: str) -> None:
        """Push the content of a free variable."""
        self.emit("LOAD_DEREF", FreeVar(name))

    def load_free_cell(self, name: str) -> None:
        """Push the cell of a free variable."""
        self.emit(LOAD_CELL, FreeVar(name))

    def load_attribute(self, name: str) -> None:
        """Replace the object on top by its attribute."""
        self.emit("LOAD_ATTR", (False, name) if _V312 else name)

    def binary(self, symbol: str) -> None:
        """left right -> left symbol right."""
        self.emit("BINARY_OP", _BINARY[symbol])

    def build(self, what: str, count: int) -> None:
        """BUILD_TUPLE, BUILD_LIST, BUILD_MAP..."""
        self.emit(f"BUILD_{what}", count)

    def push_callable(self, function: Callable[..., Any]) -> None:
        """Push a callable and the NULL beside it; arguments follow, then `call`."""
        self.push_made(lambda: self.constant(function))

    def push_made(self, make: Callable[[], None]) -> None:
        """Push the callable that `make` pushes and the NULL beside it; arguments follow, then `call`."""
        if not _V313:
            self.emit("PUSH_NULL")
        make()
        if _V313:
            self.emit("PUSH_NULL")

    def load_closure(self, names: tuple[str, ...]) -> None:
        """Push a tuple of the cells of free variables."""
        for name in names:
            self.load_free_cell(name)
        self.build("TUPLE", len(names))

    def call(self, count: int) -> None:
        """Call what `push_callable` pushed with `count` positional arguments."""
        if not _V312:
            self.emit("PRECALL", count)
        self.emit("CALL", count)

    def let_go(self, *names: str) -> None:
        """Have local variables hold None."""
        for name in names:
            self.constant(None)
            self.store_local(name)

    @contextlib.contextmanager
    def if_top_is(self, value: object) -> Iterator[None]:
        """Pop an object; what is emitted inside runs if it is this one."""
        otherwise = Label()
        self.constant(value)
        self.is_same()
        self.jump_forward_unless(otherwise)
        yield
        self.mark(otherwise)

    def top_as_callable(self) -> None:
        """Push the NULL beside the callable on top; arguments follow, then `call`."""
        self.emit("PUSH_NULL")
        if not _V313:
            self.emit("SWAP", 2)

    def mark(self, label: Label) -> None:
        """The place of a label."""
        self.instructions.append(label)

    def jump_forward_unless(self, label: Label) -> None:
        """Pop a bool; go on at a later label if it is False."""
        self.emit("POP_JUMP_IF_FALSE" if _V312 else "POP_JUMP_FORWARD_IF_FALSE", label)

    @contextlib.contextmanager
    def catching(self, handle: Callable[[], None]) -> Iterator[None]:
        """What is emitted inside has a handler; the stack is empty before.

        handle: emits it; the exception is all of the stack. Where it ends, control goes on behind the block.
        """
        handler, after = Label(), Label()
        begin = TryBegin(handler, push_lasti=False, stack_depth=0)
        self.instructions.append(begin)
        yield
        self.instructions.append(TryEnd(begin))
        self.jump_forward(after)
        self.mark(handler)
        handle()
        self.mark(after)

    def load_local_or(self, name: str, default: Any) -> None:
        """Push a local variable, or `default` if it is unbound; the stack is empty before."""

        def handle() -> None:
            self.pop()
            self.constant(default)

        with self.catching(handle):
            self.emit("LOAD_FAST_CHECK" if _V312 else "LOAD_FAST", name)

    def drop_local_if(self, name: str, sentinel: object) -> None:
        """Make a local variable unbound if it holds `sentinel`."""
        self.load_local(name)
        with self.if_top_is(sentinel):
            self.delete_local(name)

    def unseen(self, *, suspends: bool = False) -> contextlib.AbstractContextManager[None]:
        """Exceptions of calls that are emitted inside do not name this frame in their tracebacks.

        The stack is empty before. suspends: the frame is a generator's or a coroutine's, which no StopIteration leaves.
        """

        def handle() -> None:
            self.call_function(without_first_entry, arguments=1)
            if suspends and _V312:  # before, CPython itself saw to that
                self.emit("CALL_INTRINSIC_1", Intrinsic1Op.INTRINSIC_STOPITERATION_ERROR)
            self.emit("RERAISE", 0)

        return self.catching(handle)

    def make_function(self, code: CodeType) -> None:
        """Push a function of the frame's module, closed over the free variables of `code`, which the frame has too."""
        if code.co_freevars:
            self.load_closure(code.co_freevars)
        self.constant(code)
        if _V313:
            self.emit("MAKE_FUNCTION")
            if code.co_freevars:
                self.emit("SET_FUNCTION_ATTRIBUTE", 8)
        else:
            self.emit("MAKE_FUNCTION", 8 if code.co_freevars else 0)

    def call_function(self, function: Callable[..., Any], *constants: Any, arguments: int = 0) -> None:
        """Call `function` with the top `arguments` entries, then `constants`."""
        for constant in constants:
            self.constant(constant)
        self.build("TUPLE", arguments + len(constants))
        pushes = [lambda: self.emit("PUSH_NULL"), lambda: self.constant(function)]
        for push in reversed(pushes) if _V313 else pushes:
            push()
            self.emit("SWAP", 2)
        self.emit("CALL_FUNCTION_EX", 0)


class CellMove(Instr):
    """An inlined comprehension puts the cell of a free variable aside, or puts it back.

    bytecode cannot name the slots of free variables in these instructions before 3.13: others take their places, with
    the same argument, until the code is there.
    """

    PLACES: ClassVar = {"LOAD_FAST_AND_CLEAR": "LOAD_DEREF", "STORE_FAST": "STORE_DEREF"}


def _with_cell_moves(code: CodeType, instructions: list[Instr]) -> CodeType:
    """`code`, made of `instructions`, with those that others took the places of."""
    moves = [index for index, item in enumerate(instructions) if isinstance(item, CellMove)]
    if not moves:
        return code
    meant = {place: opcode.opmap[name] for name, place in CellMove.PLACES.items()}
    raw, rows = bytearray(code.co_code), decode(code).instructions
    for index in moves:
        raw[rows[index].offset] = meant[instructions[index].name]
    return code.replace(co_code=bytes(raw))


def _begin(
    code: CodeType, arguments: tuple[str, ...], free: tuple[str, ...], instructions: list[Any], flags: int
) -> Bytecode:
    """The name and place of `code`, with this body."""
    made = Bytecode()
    made.flags = flags
    made.name, made.filename, made.first_lineno = code.co_name, code.co_filename, code.co_firstlineno
    made.qualname, made.argnames, made.freevars = code.co_qualname, list(arguments), list(free)
    if free:
        made.append(Instr("COPY_FREE_VARS", len(free), lineno=code.co_firstlineno))
    if flags & SUSPENDS:
        made.extend(Instr(name, lineno=code.co_firstlineno) for name in ("RETURN_GENERATOR", "POP_TOP"))
    made.append(Instr("RESUME", 0, lineno=code.co_firstlineno))
    made.extend(instructions)
    for item in made:
        if isinstance(item, Instr):
            item.location = _location(item.location)
    return made


def _location(location: InstrLocation | None) -> InstrLocation | None:
    """Without columns beyond 127 in one line, which bytecode (0.19) writes as single bytes.

    CPython reads a byte above 127 as the next entry of the table of lines: the table is longer than the code then, and
    a tracer has CPython write behind the lines that it keeps for each instruction.
    """
    if location is None or location.lineno != location.end_lineno or (location.end_col_offset or 0) < 128:
        return location
    return InstrLocation(location.lineno, location.end_lineno, None, None)


def assemble_copy(
    code: CodeType, arguments: tuple[str, ...], instructions: list[Any], *, stack: int, suspends: bool = False
) -> CodeType:
    """A function's code with these positional arguments, whose free variables are all cells of `code`.

    stack: an upper bound of its stack. suspends: it makes a generator or a coroutine where `code` does.
    """
    flags = (code.co_flags | inspect.CO_NESTED) & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    flags = flags if suspends else flags & ~SUSPENDS
    made = _begin(code, arguments, (*code.co_cellvars, *code.co_freevars), instructions, flags)
    made.argcount = len(arguments)
    assembled = made.to_code(stacksize=stack, compute_exception_stack_depths=False)
    return _with_cell_moves(assembled, [item for item in made if isinstance(item, Instr)])


def assemble(code: CodeType, instructions: list[Any]) -> CodeType:
    """A function's code with the arguments and free variables of `code` and this body."""
    made = _begin(code, argument_names(code), code.co_freevars, instructions, code.co_flags & ~SUSPENDS)
    made.argcount, made.posonlyargcount = code.co_argcount, code.co_posonlyargcount
    made.kwonlyargcount = code.co_kwonlyargcount
    return made.to_code()
