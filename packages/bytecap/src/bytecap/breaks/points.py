"""The points of one code object at which its captures break and start again, and the code that joins them."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import CellType, CodeType, FunctionType
from typing import Any

from bytecode import Label

from bytecap.breaks.body import body_start, copy_body, implied_reads, reads_own_frame
from bytecap.breaks.flow import Shape, flow_of, put_together, reached, shapes_of, slots, successors_of, take_apart
from bytecap.bytecode.assembler import Assembler, assemble_copy
from bytecap.bytecode.decode import InstructionTrace
from bytecap.errors import CannotRebuild

# Instructions that put away what is on the stack.
_STORES = frozenset(
    {"STORE_FAST", "STORE_DEREF", "STORE_GLOBAL", "POP_TOP", "UNPACK_SEQUENCE", "NOP", "STORE_FAST_STORE_FAST",
     "SET_FUNCTION_ATTRIBUTE"}
)  # fmt: skip
# What a stack cannot hold where a function is entered or left.
_CLOSED = frozenset({"saved", "stale"})
_CALLS = frozenset({"CALL", "CALL_KW"})
_FORMATS = frozenset({"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC"})
CALL_PARTS = frozenset({"KW_NAMES", "PRECALL"})
"""Instructions that are one with the CALL behind them."""


class Unbound:
    """Stands for a variable without a value in a state."""


class Continue(tuple[Any, ...]):
    """(target, values), a state: what a segment returns when it breaks, instead of the function's result.

    The driver empties the list of values: whoever calls it holds the state until it returns.
    """

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class Point:
    """An instruction at which the function can be entered.

    variables: the live locals. doubtful: those of them that may be unbound. shape: of the stack. absent: what a state
    has for a variable without a value. A state's values are those of the variables, then those of the stack.
    """

    index: int
    variables: tuple[str, ...]
    doubtful: frozenset[str]
    shape: Shape
    absent: type = Unbound

    @property
    def names(self) -> tuple[str, ...]:
        """The locals that a state is given in."""
        return (*self.variables, *slots(self.shape))

    def enter(self, out: Assembler) -> None:
        """Make the frame what it is at this point, from the locals `names`; the stack is empty before."""
        for name in self.variables:
            if name in self.doubtful:
                out.drop_local_if(name, self.absent)
        put_together(out, self.shape)

    def leave(self, out: Assembler) -> None:
        """Put what a state holds of the frame into the locals `names`; the stack is empty behind."""
        take_apart(out, self.shape)
        for name in self.variables:
            if name in self.doubtful:
                out.load_local_or(name, self.absent)
                out.store_local(name)


@dataclass(frozen=True)
class Segment:
    """The function that starts at a point.

    indices: for each of its instructions the original's; None for its own. (An outline does not ask for them.)
    """

    point: Point
    code: CodeType
    indices: tuple[int | None, ...] = ()


@dataclass(frozen=True, eq=False)
class Plan:
    """What a driver is made from, each by its instruction: the points where it takes over, the segments it calls.

    breaks: the instructions that captures ended at. graphless: where segments start that broke without a graph.
    """

    targets: Mapping[int, Point] = field(default_factory=dict)
    segments: Mapping[int, Segment] = field(default_factory=dict)
    breaks: frozenset[int] = frozenset()
    graphless: frozenset[int] = frozenset()


class Resumption:
    """What is known of one code object: where it breaks, the segments behind the breaks, the driver.

    Several threads may capture parts of the function at once, while others run its driver: what is known is a `plan`
    that is replaced and never changed, and a driver says which plan it was made from. Points and segments are only ever
    added. Nothing but that runs under the lock.
    """

    def __init__(self, code: CodeType, on_driver: Callable[[CodeType], None] = lambda code: None) -> None:
        self.code = code
        self.flow = flow_of(code)
        self.start = body_start(self.flow.program)
        self.indices = (*[None] * self.start, *range(self.start, len(self.flow.program.instructions)))
        self._shapes = shapes_of(code)
        self.plan = Plan()
        self._lock = threading.RLock()  # signal handlers and finalizers run anywhere
        self._on_driver = on_driver
        self._driver: tuple[Plan, CodeType] | None = None
        self._functions: weakref.WeakSet[FunctionType] = weakref.WeakSet()

    # -- points

    @property
    def is_possible(self) -> bool:
        """Whether the function can be continued in another frame at all."""
        return not reads_own_frame(self.flow.program)

    def can_enter(self, index: int) -> bool:
        """Whether the frame can be made what it is at an instruction."""
        shape = self._shapes[index]
        return shape is not None and not _CLOSED.intersection(shape)

    def target(self, index: int) -> Point:
        """The point at which the driver takes over."""
        while index > self.start and self._name(index - 1) in CALL_PARTS:
            index -= 1
        if index not in self.plan.targets:
            self._learn("targets", index, self._point(index))
        return self.plan.targets[index]

    def _learn(self, what: str, index: int, made: Point | Segment) -> None:
        with self._lock:
            known = getattr(self.plan, what)
            if index not in known:
                self.plan = replace(self.plan, **{what: {**known, index: made}})

    def add_break(self, index: int) -> None:
        """The instruction `index` cannot be captured: segments start behind it."""
        program = self.flow.program
        while self._name(index) in CALL_PARTS:
            index += 1
        with self._lock:
            if index not in self.plan.breaks:
                self.plan = replace(self.plan, breaks=self.plan.breaks | {index})
        shape = self._shapes[index]
        behind = successors_of(program, index)
        if shape is not None and "saved" in shape:  # an inlined comprehension (3.12 and later): what comes behind it
            later = ((at, self._shapes[at]) for at in range(index, len(self._shapes)))
            behind = next(((at,) for at, shape in later if shape is not None and "saved" not in shape), ())
        self._add_segments(behind)

    def _add_segments(self, starts: Iterable[int]) -> None:
        for start in {self._carried(max(start, self.start)) for start in starts}:
            if start not in self.plan.segments and self.can_enter(start) and self.flow.works(start):
                self._learn("segments", start, self._segment(self._point(start)))

    def add_graphless(self, segment: Segment) -> None:
        """A segment broke without a graph: if it does no tensor work in its loop but what breaks, its loop's end is
        where the next one starts."""
        is_idle, ends = self._pass_from(segment.point.index, self.plan)
        if not is_idle:
            return
        self._add_segments(ends)
        with self._lock:
            self.plan = replace(self.plan, graphless=self.plan.graphless | {segment.point.index})

    def result_of(self, index: int) -> tuple[Segment, str, bool] | None:
        """The segment behind a call or f-string that broke, the local with its result there, whether it is a text."""
        while self._name(index) in CALL_PARTS:
            index += 1
        is_text = self._name(index) in _FORMATS
        segment = self.plan.segments.get(self._carried(index + 1)) if is_text or self._name(index) in _CALLS else None
        if segment is None:
            return None
        names, store = segment.point.names, self.flow.program.instructions[index + 1]
        name = names[-1] if segment.point.index == index + 1 else store.argval
        return (segment, name, is_text) if name in names else None

    def _pass_from(self, start: int, plan: Plan) -> tuple[bool, set[int]]:
        """Whether no tensor work but what breaks comes behind `start` before control breaks or a loop has ended, and
        where these loops end."""
        program, ends = self.flow.program, set()

        def successors(index: int) -> tuple[int, ...]:
            following = successors_of(program, index)
            if program.instructions[index].opname == "FOR_ITER":
                ends.add(following[1])
                return following[:1]
            return following

        return not self.flow.may_work(reached(start, successors, plan.breaks) - plan.breaks), ends

    def _carried(self, index: int) -> int:
        """Past what only puts a result where it belongs: it need not go through a segment's arguments."""
        while self._name(index) in _STORES and self.can_enter(index + 1):
            index += 1
        return index

    def _name(self, index: int) -> str:
        return self.flow.program.instructions[index].opname

    def _point(self, index: int) -> Point:
        code, flow = self.code, self.flow
        boxed = {*code.co_cellvars, *code.co_freevars}
        live = flow.live[index].union(implied_reads(code))
        variables = tuple(name for name in code.co_varnames if name in live and name not in boxed)
        shape = self._shapes[index]
        return Point(index, variables, flow.unbound[index].intersection(variables), shape)

    # -- code

    def _segment(self, point: Point) -> Segment:
        out = Assembler(self.code.co_firstlineno)
        point.enter(out)
        start = Label()
        out.jump_forward(start)
        head = sum(1 for item in out.instructions if not isinstance(item, Label))
        body = copy_body(self.code, {point.index: start}, {})
        code = assemble_copy(self.code, point.names, [*out.instructions, *body.items], stack=self._stack_for(0))
        before: list[int | None] = [None] * (head + 1 + bool(code.co_freevars))
        return Segment(point, code, (*before, *body.indices))

    @property
    def driver_code(self) -> CodeType:
        """Code of `driver(state) -> result`: enters the body at the state's target, and calls segments from there."""
        plan, made = self.plan, self._driver
        if made is None or made[0] is not plan:
            made = plan, self._make_driver(plan)
            self._on_driver(made[1])
            self._driver = made
        return made[1]

    def driver_without_cells(self, names: dict[str, Any]) -> FunctionType:
        """The driver of a function without cells, for all calls; what is learnt of breaks later is put into it."""
        made = make_driver(self, names, ())
        with self._lock:
            self._functions.add(made)
        return made

    def renew_drivers(self) -> None:
        """Have the functions that were made before know the plan; frames that run are not changed by that."""
        with self._lock:
            known = list(self._functions)
        for function in known:
            function.__code__ = self.driver_code

    def _make_driver(self, plan: Plan) -> CodeType:
        out = Assembler(self.code.co_firstlineno)
        dispatch = Label()
        entries = {index: Label() for index in plan.targets}
        # Where a segment is not worth a call, what it does before it breaks again runs plain.
        idle = {index for index in plan.graphless if self._pass_from(index, plan)[0]}
        called = {index: segment for index, segment in plan.segments.items() if index not in idle}
        exits = {index: Label() for index in called}
        out.mark(dispatch)
        self._emit_dispatch(out, plan, entries)
        body = copy_body(self.code, entries, exits)
        tail = Assembler(self.code.co_firstlineno)
        for index, segment in called.items():
            tail.mark(exits[index])
            self._emit_call(tail, segment)
            _emit_result(tail, dispatch)
        items = [*out.instructions, *body.items, *tail.instructions]
        points = (*plan.targets.values(), *(segment.point for segment in called.values()))
        most = max((len(point.names) for point in points), default=0)
        return assemble_copy(self.code, (".state",), items, stack=self._stack_for(most))

    def _stack_for(self, values: int) -> int:
        """An upper bound of a copy's stack: the original's, a state's values, a closure's cells, and a few more."""
        return self.code.co_stacksize + values + len(self.closure_names) + _ROOM

    def _emit_dispatch(self, out: Assembler, plan: Plan, entries: dict[int, Label]) -> None:
        """Enter at the state's target; a target that this driver does not know is for a newer one."""
        self._emit_entries(out, plan.targets, entries)
        # Weakly: the garbage collector does not look into code objects, and this one is the resumption's.
        with out.unseen():
            out.constant(weakref.ref(self))
            out.load_closure(self.closure_names)
            out.call_function(newest_driver, arguments=2)
            out.top_as_callable()
            out.load_local(".state")
            out.call(1)
        out.return_top()

    def _emit_entries(self, out: Assembler, targets: Mapping[int, Point], entries: dict[int, Label]) -> None:
        """Enter at the state's target, if it is one of these."""
        for index, point in targets.items():
            _load_state(out, 0)
            with out.if_top_is(point):
                _load_state(out, 1)
                out.unpack(len(point.names))
                for name in point.names:
                    out.store_local(name)
                out.push_callable(list.clear)
                _load_state(out, 1)
                out.call(1)
                out.pop()
                out.let_go(".state")
                point.enter(out)
                out.jump_forward(entries[index])

    def _emit_call(self, out: Assembler, segment: Segment) -> None:
        """Call a segment with the frame's variables and stack, which are let go."""
        point = segment.point
        point.leave(out)
        with out.unseen():
            out.push_made(lambda: out.make_function(segment.code))
            self._push_state(out, point)
            out.call(len(point.names))

    def _push_state(self, out: Assembler, point: Point) -> None:
        """Push what a state holds at a point, which the frame lets go of."""
        for name in point.names:
            out.load_local(name)
        variables = (name for name in self.code.co_varnames if name not in self.code.co_cellvars)
        out.let_go(*variables, *slots(point.shape))

    @property
    def closure_names(self) -> tuple[str, ...]:
        """The cells that a driver or segment is closed over."""
        return (*self.code.co_cellvars, *self.code.co_freevars)


# What the added instructions need of the stack at most, beside a state's values and a closure's cells.
_ROOM = 12


def _emit_result(out: Assembler, dispatch: Label) -> None:
    """Return the value on top, or go on where it says."""
    out.store_local(".state")
    out.push_callable(type)
    out.load_local(".state")
    out.call(1)
    with out.if_top_is(Continue):
        out.jump_backward(dispatch)
    out.load_local(".state")
    out.return_top()


def _load_state(out: Assembler, part: int) -> None:
    """Push the target of the state, or its values."""
    out.load_local(".state")
    out.constant(part)
    out.subscript()


def make_driver(resumption: Resumption, names: dict[str, Any], closure: tuple[CellType, ...]) -> FunctionType:
    """The driver as a function of the module `names`."""
    code = resumption.driver_code
    return FunctionType(code, names, code.co_name, None, closure or None)


def newest_driver(reference: weakref.ref[Resumption], closure: tuple[CellType, ...]) -> FunctionType:
    """The driver that knows all targets, for the frame that calls this (its scope holds the resumption)."""
    resumption = reference()
    return make_driver(resumption, sys._getframe(1).f_globals, closure)


# -- all code objects of an engine: where their captures broke, and where a frame that breaks can be left


@dataclass(frozen=True)
class Break:
    """Where a capture is to end before its frame does.

    count: how many instructions the frame executes in the capture. resumption: of the frame's code, or of the code
    that it is a segment of.
    """

    count: int
    resumption: Resumption
    segment: Segment | None = None

    def index_of(self, pc: int) -> int:
        """The instruction of the resumption's code that the frame's instruction `pc` is."""
        index = (self.segment or self.resumption).indices[pc]
        if index is None:
            raise CannotRebuild("a segment that broke before its first instruction")
        return index


class Breaks:
    """The resumptions of all code objects of an engine.

    on_driver: is told of every driver's code, which is never captured.
    """

    def __init__(self, on_driver: Callable[[CodeType], None]) -> None:
        self._on_driver = on_driver
        self.drivers: set[CodeType] = set()  # the code that runs the instructions that broke
        self._parts: dict[CodeType, tuple[Resumption, Segment | None]] = {}

    def is_segment(self, code: CodeType) -> bool:
        """Whether the code starts behind a break."""
        return code in self._parts and self._parts[code][1] is not None

    def parts_of(self, code: CodeType) -> list[CodeType]:
        """The code and every segment of its function."""
        segments = self._parts[code][0].plan.segments.values() if code in self._parts else ()
        return [code, *(segment.code for segment in segments)]

    def places(self, code: CodeType, trace: InstructionTrace) -> Iterator[Break]:
        """A frame of `code` cannot be captured past the end of `trace`: where it can be left, the best place first."""
        resumption, segment = self._part(code)
        origins = (segment or resumption).indices
        last = origins[trace.indices[-1]] if trace.indices else None
        if last is None or not resumption.is_possible:
            return
        resumption.add_break(last)
        self._know(resumption)
        # It cannot be left among the instructions that only set the frame up.
        for count in trace.stops(sum(origins[pc] is None for pc in trace.indices)):
            index = origins[trace.indices[count]]
            if index is not None and resumption.can_enter(index):
                yield Break(count, resumption, segment)

    def result_of(self, code: CodeType, trace: InstructionTrace) -> tuple[Segment, str, bool] | None:
        """See `Resumption.result_of`, for the instruction at the end of the trace."""
        resumption, segment = self._part(code)
        last = (segment or resumption).indices[trace.indices[-1]]
        return None if last is None else resumption.result_of(last)

    def add_graphless(self, code: CodeType) -> None:
        """A capture of `code` broke without a graph."""
        resumption, segment = self._part(code)
        if segment is not None:
            resumption.add_graphless(segment)
            self._know(resumption)

    def _know(self, resumption: Resumption) -> None:
        for added in resumption.plan.segments.values():
            self._parts.setdefault(added.code, (resumption, added))

    def _part(self, code: CodeType) -> tuple[Resumption, Segment | None]:
        """The resumption that a code object belongs to, and the segment that it is."""
        if code not in self._parts:
            self._parts[code] = Resumption(code, self._adopt_driver), None
        return self._parts[code]

    def _adopt_driver(self, code: CodeType) -> None:
        self.drivers.add(code)
        self._on_driver(code)
