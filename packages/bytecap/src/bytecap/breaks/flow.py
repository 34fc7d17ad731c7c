"""Control flow of a code object: successors, live variables, variables that may be unbound.

All of it is indexed by instruction, as `bytecode.decode` counts them. Only fast locals are followed: cells and free
variables live in their cells.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import Any, Literal

from bytecap.bytecode.assembler import Assembler
from bytecap.bytecode.decode import PAIRS, Instruction, Program, argument_names, decode, per_code

ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
ALWAYS_JUMPS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})
# What instructions do to a local; what they do to a cell.
_ON_LOCAL = {
    "LOAD_FAST": ("read",), "LOAD_FAST_CHECK": ("read",), "LOAD_FAST_AND_CLEAR": ("read", "drop"),
    "STORE_FAST": ("bind",), "DELETE_FAST": ("drop",),
}  # fmt: skip
_ON_CELL = {"STORE_DEREF": ("bind",), "DELETE_DEREF": ("drop",)}
# Instructions that may start tensor work.
_WORK = frozenset(
    {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "BINARY_OP", "BINARY_SUBSCR", "BINARY_SLICE", "COMPARE_OP",
     "UNARY_NEGATIVE", "UNARY_INVERT", "STORE_SUBSCR"}
)  # fmt: skip


@dataclass(frozen=True)
class Flow:
    """What the analysis found, per instruction.

    live: the locals that may be read from here on. unbound: those that may have no value here. empty: the function's
    own cells that may have none.
    """

    program: Program
    successors: tuple[tuple[int, ...], ...]
    live: tuple[frozenset[str], ...]
    unbound: tuple[frozenset[str], ...]
    empty: tuple[frozenset[str], ...]

    def works(self, start: int) -> bool:
        """Whether an instruction that may do tensor work can be reached from `start`."""
        return self.may_work(reached(start, self.successors.__getitem__))

    def may_work(self, indices: Iterable[int]) -> bool:
        """Whether one of these instructions may do tensor work."""
        return any(self.program.instructions[index].opname in _WORK for index in indices)


def reached(start: int, successors: Callable[[int], tuple[int, ...]], until: Set[int] = frozenset()) -> frozenset[int]:
    """The instructions that control comes to from `start`; it goes on behind none of `until`."""
    seen, waiting = {start}, [start]
    while waiting:
        index = waiting.pop()
        new = () if index in until else set(successors(index)) - seen
        seen.update(new)
        waiting.extend(new)
    return frozenset(seen)


def successors_of(program: Program, index: int) -> tuple[int, ...]:
    """The instructions that may follow `index` without an exception."""
    instruction = program.instructions[index]
    name = instruction.opname
    if name in ENDS:
        return ()
    if name in ALWAYS_JUMPS:
        return (instruction.target,)
    if name == "FOR_ITER":  # when its iterator is exhausted, 3.12 and 3.13 step over an END_FOR
        return (index + 1, instruction.target + (sys.version_info >= (3, 12)))
    if instruction.target >= 0:
        return (index + 1, instruction.target)
    return (index + 1,)


Steps = tuple[tuple[str, str], ...]


def _steps(instruction: Instruction, kinds: Mapping[str, tuple[str, ...]]) -> Steps:
    """(kind, name) of each local or cell that it touches, in order; kind: read, bind, drop."""
    name, argval = instruction.opname, instruction.argval
    parts: Any = zip(PAIRS[name], argval, strict=True) if name in PAIRS else [(name, argval)]  # type: ignore[call-overload]
    return tuple((kind, str(variable)) for part, variable in parts for kind in kinds.get(part, ()))


def _deleted_inside(code: CodeType) -> frozenset[str]:
    """Variables that functions within this one delete."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    deleted = {str(i.argval) for made in inner for i in decode(made).instructions if i.opname == "DELETE_DEREF"}
    return frozenset(deleted).union(*map(_deleted_inside, inner))


@per_code
def flow_of(code: CodeType) -> Flow:
    """The flow of `code`.

    >>> def f(x, n):
    ...     y = x + n
    ...     return y
    >>> sorted(flow_of(f.__code__).live[0])
    ['n', 'x']
    """
    program = decode(code)
    count = len(program.instructions)
    direct = tuple(successors_of(program, index) for index in range(count))
    handlers = [program.handler_at(index) for index in range(count)]
    full = tuple(after if h is None else (*after, h.target) for after, h in zip(direct, handlers, strict=True))
    on_locals, on_cells = ([_steps(each, kinds) for each in program.instructions] for kinds in (_ON_LOCAL, _ON_CELL))
    live = _live(full, on_locals)
    unbound = _maybe_unbound(code, program, direct, frozenset(code.co_varnames), on_locals)
    empty = _maybe_unbound(code, program, direct, frozenset(code.co_cellvars), on_cells)
    forgotten = _deleted_inside(code).intersection(code.co_cellvars)
    return Flow(program, full, live, unbound, tuple(names | forgotten for names in empty))


def _live(successors: tuple[tuple[int, ...], ...], steps: list[Steps]) -> tuple[frozenset[str], ...]:
    """Backwards: a variable is live in front of what reads it, or drops it, which needs it to be bound."""
    nothing: frozenset[str] = frozenset()
    live = [nothing] * len(successors)
    changed = True
    while changed:
        changed = False
        for index in range(len(successors) - 1, -1, -1):
            found = nothing.union(*[live[i] for i in successors[index]])
            for kind, name in reversed(steps[index]):
                found = found - {name} if kind == "bind" else found | {name}
            if found != live[index]:
                live[index] = found
                changed = True
    return tuple(live)


def _maybe_unbound(
    code: CodeType,
    program: Program,
    direct: tuple[tuple[int, ...], ...],
    names: frozenset[str],
    steps: list[Steps],
) -> tuple[frozenset[str], ...]:
    """Forwards: a variable is unbound at first unless it is an argument; a handler sees what held at any point."""
    count = len(program.instructions)
    states: list[frozenset[str] | None] = [None] * count
    waiting = [0]
    states[0] = names - set(argument_names(code))
    while waiting:
        index = waiting.pop()
        before = states[index]
        after = before
        for kind, name in steps[index]:
            after = after | {name} if kind == "drop" else after - {name}
        handler = program.handler_at(index)
        edges = [(target, after) for target in direct[index]]
        if handler is not None:
            edges.append((handler.target, before | after))
        for target, state in edges:
            known = states[target]
            merged = state if known is None else known | state
            if merged != known:
                states[target] = merged
                waiting.append(target)
    # An inlined comprehension puts a variable back as it was, which may be without a value.
    put_back = frozenset(str(i.argval) for i in program.instructions if i.opname == "LOAD_FAST_AND_CLEAR")
    return tuple(names if state is None else state | put_back for state in states)


# -- The shape of a frame's stack at each instruction: which entries are objects, which are CPython's own.
#
#     shape ::= entry*                       the deepest first
#     entry ::= value                        a Python object
#             | raised                       the exception that a handler starts with
#             | null                         the NULL beside a callable
#             | lasti                        where an exception was raised, which matters to nobody
#             | handled                      what PUSH_EXC_INFO saved: an exception is being handled above it
#             | stale                        a copy of that, or that when the handling has ended: no place for a break
#             | saved                        a variable that an inlined comprehension put aside (3.12 and later)
#
# The compiler gives every instruction one shape, however it is reached, if LOAD_METHOD and its kin push NULL always
# (CPython pushes a receiver instead where it can; bytecap's evaluator and its copies do not).
#

Entry = Literal["value", "raised", "null", "lasti", "handled", "stale", "saved"]
Shape = tuple[Entry, ...]

# What a handler covers without need: the stack is not yet, or no longer, as the handler wants it.
_NEVER_RAISES = frozenset({"PUSH_EXC_INFO", "POP_EXCEPT", "NOP", "POP_TOP", "COPY", "SWAP"})
# What calls take beside their arguments.
_CALLS = {"CALL": 2, "CALL_KW": 3}
_NULL_FIRST = sys.version_info < (3, 13)
_CALLABLE: Shape = ("null", "value") if _NULL_FIRST else ("value", "null")
# Loads that push a callable and NULL if the lowest bit of their argument is set, and how much they pop.
_LOADS = {"LOAD_GLOBAL": 0, "LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 3}
if sys.version_info < (3, 12):
    del _LOADS["LOAD_ATTR"]


@per_code
def shapes_of(code: CodeType) -> tuple[Shape | None, ...]:
    """The shape before each instruction of `code`; None for what cannot be reached."""
    program = decode(code)
    shapes: list[Shape | None] = [None] * len(program.instructions)
    waiting = [0]
    shapes[0] = ()
    while waiting:
        index = waiting.pop()
        before = shapes[index]
        following = [(target, _after(program, index, before, target)) for target in successors_of(program, index)]
        handler = program.handler_at(index)
        if handler is not None and program.instructions[index].opname not in _NEVER_RAISES:
            # What is left of the stack; where the exception was raised, if that is wanted; the exception.
            lasti: Shape = ("lasti",) if handler.lasti else ()
            following.append((handler.target, (*before[: handler.depth], *lasti, "raised")))
        for target, shape in following:
            if shapes[target] is None:
                shapes[target] = shape
                waiting.append(target)
    return tuple(shapes)


def _after(program: Program, index: int, shape: Shape, target: int) -> Shape:
    """The shape at `target`, which follows `index`, which starts with `shape`."""
    instruction = program.instructions[index]
    name, arg = instruction.opname, instruction.arg
    if name in _CALLS:
        return (*shape[: len(shape) - arg - _CALLS[name]], "value")
    if name in _LOADS and arg & 1:
        return (*shape[: len(shape) - _LOADS[name]], *_CALLABLE)
    match name:
        case "PRECALL":
            return shape
        case "CALL_FUNCTION_EX":
            return (*shape[: len(shape) - 3 - (arg & 1)], "value")
        case "LOAD_METHOD":
            return (*shape[:-1], *_CALLABLE)
        case "PUSH_NULL":
            return (*shape, "null")
        case "PUSH_EXC_INFO":
            return (*shape[:-1], "handled", "value")
        case "POP_EXCEPT":
            if shape[-1] == "handled":
                return shape[:-1]
            # The innermost handling ends, what PUSH_EXC_INFO saved is still there.
            last = max(at for at, entry in enumerate(shape[:-1]) if entry == "handled")
            return (*shape[:last], "stale", *shape[last + 1 : -1])
        case "LOAD_FAST_AND_CLEAR":
            return (*shape, "saved")
        case "COPY":
            return (*shape, "stale" if shape[-arg] == "handled" else shape[-arg])
        case "SWAP":
            return (*shape[:-arg], shape[-1], *shape[len(shape) - arg + 1 : -1], shape[-arg])
        case "FOR_ITER" if target != index + 1:
            # 3.11 and 3.12 drop the iterator; 3.13 leaves that to the instruction after END_FOR.
            return shape[:-1] if _NULL_FIRST else shape
    operand = arg if instruction.number >= dis.HAVE_ARGUMENT else None
    effect = dis.stack_effect(instruction.number, operand, jump=target != index + 1)
    return shape[:effect] if effect < 0 else (*shape, *["value"] * effect)  # type: ignore[return-value]


# -- taking a stack apart into locals, and putting it together again

HELD = frozenset({"value", "raised", "handled"})
"""The entries of a stack that a state holds an object for."""


def slot(index: int) -> str:
    """The local that holds an entry."""
    return f".stack{index}"


def slots(shape: Shape) -> tuple[str, ...]:
    """The locals that hold a stack, the deepest entry first."""
    return tuple(slot(index) for index, entry in enumerate(shape) if entry in HELD)


def take_apart(out: Assembler, shape: Shape) -> None:
    """Pop the whole stack into its slots; what was being handled is handled no more."""
    for index in reversed(range(len(shape))):
        match shape[index]:
            case "value" | "raised":
                out.store_local(slot(index))
            case "null":
                # CPython lets NULL be stored: it makes the variable unbound.
                out.store_local(".null")
            case "lasti":
                out.pop()
            case "handled":
                out.call_function(sys.exception)
                out.store_local(slot(index))
                out.emit("POP_EXCEPT")


def put_together(out: Assembler, shape: Shape) -> None:
    """Push the whole stack from its slots, which are unbound afterwards."""
    for index, entry in enumerate(shape):
        if entry == "null":
            out.emit("PUSH_NULL")
            continue
        if entry == "lasti":
            out.constant(0)
            continue
        out.load_local(slot(index))
        out.delete_local(slot(index))
        if entry in ("raised", "handled"):
            out.call_function(raised_here, arguments=1)
        if entry == "handled":
            out.emit("PUSH_EXC_INFO")
            out.pop()


def raised_here(error: BaseException | None) -> BaseException | None:
    """An exception that captured code raised, with the traceback that CPython expects of whatever is handled."""
    if error is not None and error.__traceback__ is None:
        frame = sys._getframe(1)
        error.__traceback__ = TracebackType(None, frame, frame.f_lasti, frame.f_lineno)
    return error
