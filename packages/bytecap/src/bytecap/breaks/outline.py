"""Generators and coroutines: what lies between two suspensions is outlined into functions of its own.

    outline ::= (own instruction+ region)*      a copy of the code: what suspends, loops around that, and returns
    region  ::= state -> (point, values)        a function from one own instruction to the next, captured like any other

The outline is a generator or a coroutine as the original is: CPython resumes it where it stopped, throws into it and
closes it. It hands its variables to a region, and goes on at the point that the region gives. What an exception that
is thrown in leads to runs plain, up to where the next region starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from bytecode import Instr, Intrinsic1Op, Label, TryBegin, TryEnd

from bytecap.breaks.body import copy_body
from bytecap.breaks.flow import reached, successors_of
from bytecap.breaks.points import CALL_PARTS, Point, Resumption, Segment
from bytecap.bytecode.assembler import SUSPENDS, Assembler, assemble, assemble_copy
from bytecap.bytecode.decode import argument_names
from bytecap.hook import Owner, call_with_owner

# What suspends, and what leads up to it or follows it on the outline's own stack.
_SUSPENSIONS = frozenset(
    {"YIELD_VALUE", "SEND", "GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "END_ASYNC_FOR", "BEFORE_ASYNC_WITH",
     "ASYNC_GEN_WRAP", "GET_YIELD_FROM_ITER", "CLEANUP_THROW", "END_SEND", "RESUME"}
)  # fmt: skip
# What makes a coroutine or a generator is called by the outline, too, where that is awaited or iterated at once.
_TAKES_AWAITABLE = frozenset({"GET_AWAITABLE", "GET_YIELD_FROM_ITER", "GET_AITER", "BEFORE_ASYNC_WITH"})
_CALLS = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX"})
_RETURNS = frozenset({"RETURN_VALUE", "RETURN_CONST"})


def outlined_from(target: Callable[..., Any]) -> Callable[..., Any]:
    """What `Outline.outlined` was given, if it made `target`; else `target`."""
    if isinstance(target, MethodType):
        return MethodType(outlined_from(target.__func__), target.__self__)
    return getattr(target, "_outlined_from", target) if isinstance(target, FunctionType) else target


def suspends(code: CodeType) -> bool:
    """Whether a call of `code` makes a generator, a coroutine or an asynchronous generator."""
    return bool(code.co_flags & SUSPENDS)


class Absent:
    """Stands for a variable without a value in a state of an outline: one of a region's segments has another."""


class Outline(Resumption):
    """The outline of one code object that suspends. owner: who captures its regions."""

    def __init__(self, code: CodeType, owner: Owner) -> None:
        super().__init__(code)
        self._owner = owner
        self._own = frozenset(self._own_instructions())
        ways = [self.start, *(after for index in self._own for after in self._following(index))]
        starts = list(self._starts(ways))
        self._exits = {
            start: reached(start, self.flow.successors.__getitem__, self._own) & self._own for start in starts
        }
        ends = sorted(frozenset().union(*self._exits.values()))
        self._can_leave = all(map(self.can_enter, ends))
        self._points = {index: self._point(index) for index in ends} if self._can_leave else {}
        self.regions = {start: self._region(start) for start in starts} if self._can_leave else {}

    def _point(self, index: int) -> Point:
        return replace(super()._point(index), absent=Absent)

    @property
    def hindrance(self) -> str | None:
        """Why the function cannot be outlined, in a few words; None if it can."""
        if not self._can_leave:
            return "suspends where its stack cannot be built again"
        return None if self.is_possible else "suspends and looks at its own frame"

    def _following(self, index: int) -> tuple[int, ...]:
        """What may follow an instruction without an exception."""
        return successors_of(self.flow.program, index)

    def _own_instructions(self) -> Iterator[int]:
        """The instructions that the outline runs itself."""
        rows = self.flow.program.instructions
        alive = [index for index in range(self.start, len(rows)) if self._shapes[index] is not None]
        stops = [index for index in alive if self._suspends(index)]
        yield from stops
        closed = {index for index in alive if not self.can_enter(index)}
        if closed.intersection(stops):  # an inlined comprehension that awaits: with what leads into it
            yield from closed
            yield from (index for index in alive if closed.intersection(self._following(index)))
        for index in alive:
            row, before = rows[index], rows[index - 1]
            if row.opname in _RETURNS:
                yield index
            elif row.opname == "FOR_ITER" and any(index < stop < row.target for stop in stops):
                yield index
                if before.opname == "GET_ITER":
                    yield index - 1
            if row.opname in _TAKES_AWAITABLE and before.opname in _CALLS:
                yield from self._call(index - 1)

    def _call(self, index: int) -> Iterator[int]:
        """The call at an instruction, with what is one with it."""
        yield index
        while self._name(index - 1) in CALL_PARTS:
            index -= 1
            yield index

    def _suspends(self, index: int) -> bool:
        row = self.flow.program.instructions[index]
        if row.opname == "CALL_INTRINSIC_1":
            return row.arg == Intrinsic1Op.INTRINSIC_ASYNC_GEN_WRAP
        return row.opname in _SUSPENSIONS

    def _starts(self, ways: list[int]) -> Iterator[int]:
        """Where regions start, of these instructions: those behind which there is tensor work to find."""
        for start in sorted(set(map(self._carried, ways))):
            passed = reached(start, self._following, self._own) - self._own
            if start in passed and self.can_enter(start) and self.flow.may_work(passed):
                yield start

    def _region(self, start: int) -> Segment:
        point, begin = self._point(start), Label()
        out, tail = Assembler(self.code.co_firstlineno), Assembler(self.code.co_firstlineno)
        point.enter(out)
        out.jump_forward(begin)
        exits = {index: Label() for index in self._exits[start]}
        for index, label in exits.items():
            left = self._points[index]
            tail.mark(label)
            left.leave(tail)
            tail.constant(left)
            self._push_state(tail, left)
            tail.build("LIST", len(left.names))
            tail.build("TUPLE", 2)
            tail.return_top()
        body = _without_conversion(copy_body(self.code, {start: begin}, exits).items)
        items = [*out.instructions, *body, *tail.instructions]
        code = assemble_copy(self.code, point.names, items, stack=self._stack_for(self._most()))
        # Where a region breaks, segments of its own have variables of these names.
        return Segment(point, code.replace(co_varnames=tuple(name.replace(".", "..") for name in code.co_varnames)))

    def _most(self) -> int:
        """The most values of a state that a region gives."""
        return max((len(point.names) for point in self._points.values()), default=0)

    def outlined(self, target: Callable[..., Any]) -> Callable[..., Any]:
        """A function or method like `target`, whose code this is, that makes its generators of the outline."""
        if isinstance(target, MethodType):
            return MethodType(self.outlined(target.__func__), target.__self__)
        assert isinstance(target, FunctionType)
        function = target
        code, made = self.code, self._outline_code()

        def make(cells: tuple[CellType, ...]) -> Callable[..., Any]:
            return FunctionType(made, function.__globals__, function.__name__, None, cells)

        arguments = argument_names(code)
        out = Assembler(code.co_firstlineno)
        for name in code.co_cellvars:
            if name in arguments:
                out.load_local(name)
            out.call_function(CellType, arguments=int(name in arguments))
        for name in code.co_freevars:
            out.load_free_cell(name)
        out.build("TUPLE", len(self.closure_names))
        out.call_function(make, arguments=1)
        out.top_as_callable()
        given = self._own_arguments()
        for name in given:
            out.load_local(name)
        out.call(len(given))
        out.return_top()
        entry = FunctionType(
            assemble(code, out.instructions), function.__globals__, function.__name__, function.__defaults__,
            function.__closure__,
        )  # fmt: skip
        entry.__kwdefaults__ = function.__kwdefaults__
        entry._outlined_from = function  # type: ignore[attr-defined]
        return entry

    def _own_arguments(self) -> tuple[str, ...]:
        """The arguments that are no cells."""
        return tuple(name for name in argument_names(self.code) if name not in self.code.co_cellvars)

    def _outline_code(self) -> CodeType:
        out = Assembler(self.code.co_firstlineno)
        begin, dispatch = Label(), Label()
        out.jump_forward(begin)
        entries = {index: Label() for index in self._points}
        exits = {index: Label() for index in self.regions}
        out.mark(dispatch)
        self._emit_entries(out, self._points, entries)
        out.mark(begin)
        body = copy_body(self.code, entries, exits)
        tail = Assembler(self.code.co_firstlineno)
        for index, region in self.regions.items():
            tail.mark(exits[index])
            self._emit_region_call(tail, region)
            tail.jump_backward(dispatch)
        items = [*out.instructions, *body.items, *tail.instructions]
        most = max([self._most(), *(len(region.point.names) for region in self.regions.values())])
        return assemble_copy(self.code, self._own_arguments(), items, stack=self._stack_for(most), suspends=True)

    def _emit_region_call(self, out: Assembler, region: Segment) -> None:
        region.point.leave(out)
        with out.unseen(suspends=True):
            out.push_callable(call_with_owner)
            out.constant(self._owner)
            out.make_function(region.code)
            self._push_state(out, region.point)
            out.call(2 + len(region.point.names))
            out.store_local(".state")


def _without_conversion(items: Sequence[Any]) -> list[Any]:
    """Without the handler around all of a generator (3.12) that makes a RuntimeError of StopIteration.

    A region has none: the outline converts what leaves a region.
    """
    conversion = ("CALL_INTRINSIC_1", Intrinsic1Op.INTRINSIC_STOPITERATION_ERROR)
    converters: set[Label] = set()
    following: Instr | None = None
    for item in reversed(items):
        if isinstance(item, Instr):
            following = item
        elif isinstance(item, Label) and following is not None and (following.name, following.arg) == conversion:
            converters.add(item)
    begins = {id(item) for item in items if isinstance(item, TryBegin) and item.target in converters}
    return [
        item for item in items
        if id(item) not in begins and not (isinstance(item, TryEnd) and id(item.entry) in begins)
    ]  # fmt: skip
