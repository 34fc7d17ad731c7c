"""The state of one capture: its graph, guards, objects and sizes, a part each; the call stack, and what it raises."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, ClassVar

from absint import AbstractMode, AbstractTensor
from absint.data_sizes import DataSizedMode
from bytecap.context_types import Frame
from bytecap.errors import LoopTooLong, UnsupportedCall
from bytecap.evaluator import evaluate as evaluation
from bytecap.evaluator.graph_inputs import GraphInputs
from bytecap.evaluator.known_objects import KnownObjects
from bytecap.evaluator.object_guards import ObjectGuards
from bytecap.graph.builder import GraphBuilder, Made
from bytecap.graph.size_policy import SizePolicy
from bytecap.guards.guard_set import Names, Places, is_exempt
from bytecap.guards.process_state import TorchModes, torch_modes
from bytecap.nodes.chosen_tensors import Choice
from bytecap.nodes.data_checks import Checks
from bytecap.objects.base import PythonRaise, Value
from bytecap.objects.functions import CellValue, ClassValue
from bytecap.objects.instances.exceptions import ExceptionValue, TracebackValue
from bytecap.objects.instances.objects import AttributeWrites, ObjectValue
from bytecap.objects.iterators import GeneratorValue
from bytecap.objects.numbers.symbols import Symbols
from stagewire.capture import Source
from stagewire.graph import SourceLine

FRAME_LIMIT = 200
ITERATION_LIMIT = 50_000


class CallStack(list["Frame"]):
    """The frames, innermost last.

    fault: the exception that left the innermost frame, and the user's line there.
    handled: exceptions that are being handled, innermost last.
    generators: those that have started.
    is_part: whether the first is of a part of a function, which other parts of that call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_part = False
        self.iterations = 0
        self.fault: tuple[Exception, SourceLine] | None = None
        self.handled: list[Value] = []
        self.generators: list[GeneratorValue] = []

    @contextlib.contextmanager
    def entering(self, frame: Frame) -> Iterator[None]:
        """Run a frame on top of the others."""
        if len(self) >= FRAME_LIMIT:
            raise UnsupportedCall(f"more than {FRAME_LIMIT} nested calls")
        self.append(frame)
        try:
            yield
        finally:
            self.pop()

    def line(self) -> SourceLine:
        """The innermost line that is the user's (no file of torch), else the innermost.

        Where a function of torch itself is compiled, the line that calls it.
        """
        for frame in reversed(self):
            if not is_exempt(_module_of(frame)):
                return _line_of(frame)
        if not self:
            return SourceLine("<unknown>", 0)
        code, names = self[0].function.code, self[0].globals.real
        # No method, and not what stands for a module: that has the place of its `forward`.
        is_plain = "." not in code.co_qualname and names is not None and names.get("__file__") == code.co_filename
        return (_line_of_caller() if is_plain else None) or _line_of(self[-1])

    def line_of(self, frame: Frame) -> SourceLine:
        """The line that a frame is at."""
        return _line_of(frame)

    def module(self) -> str | None:
        """The module of the innermost frame; None once none is evaluated."""
        return _module_of(self[-1]) if self else None

    def count_iteration(self) -> None:
        """One more turn of a loop of the evaluated program."""
        self.iterations += 1
        if self.iterations > ITERATION_LIMIT:
            raise LoopTooLong(f"more than {ITERATION_LIMIT} turns of loops")

    def note_fault(self, error: Exception) -> None:
        """Remember the user's line where an exception left the innermost frame."""
        if self.fault is None or self.fault[0] is not error:
            self.fault = error, self.line()

    def traceback(self) -> TracebackValue:
        """The traceback of what is raised now."""
        return TracebackValue(_line_of(self[0]).line)

    def check_generators(self) -> None:
        """No generator is left where it would still clean up: CPython does that when it drops the generator."""
        for generator in self.generators:
            if generator.cleans_up():
                name = generator.frame.function.code.co_qualname
                raise UnsupportedCall(f"generator {name} is left within a try or with statement")


def _module_of(frame: Frame) -> str | None:
    names = frame.globals.real
    return None if names is None else names.get("__name__")


def _line_of_caller() -> SourceLine | None:
    """The innermost line that runs now and is the user's."""
    running: FrameType | None = sys._getframe()
    while running is not None and is_exempt(running.f_globals.get("__name__")):
        running = running.f_back
    return running and SourceLine(running.f_code.co_filename, running.f_lineno, running.f_code.co_qualname)


def _line_of(frame: Frame) -> SourceLine:
    code = frame.function.code
    line = frame.current.line if frame.current is not None else code.co_firstlineno
    return SourceLine(code.co_filename, line, code.co_qualname)


_FIXED = SizePolicy(enabled=False)


@dataclass(frozen=True, eq=False)
class Tracer:
    """Everything that one capture knows: parts, which abstract values are given together as their first argument.

    changing: where numbers are that the capture must not fix.
    graphs: the graph, and the bodies of functions that are being recorded inside of it, innermost last.
    made: what the replacement computes in front of the graph, by its locals, in order.
    unseen: what keeps torch's functions from asking `__torch_function__`, innermost last.
    """

    changing: frozenset[Source]
    checks: Checks
    frames: CallStack
    sizes: Symbols
    names: Names
    guards: ObjectGuards
    places: Places
    objects: KnownObjects
    inputs: GraphInputs
    mode: AbstractMode
    modes: TorchModes
    graphs: list[GraphBuilder] = field(default_factory=lambda: [GraphBuilder()])
    effects: list[Any] = field(default_factory=list)
    replayed: list[tuple[str, str]] = field(default_factory=list)
    regions: list[tuple[Callable[..., Any], Value]] = field(default_factory=list)
    index_modes: list[Value] = field(default_factory=list)
    streams: dict[int, Any] = field(default_factory=dict)
    numbers_in_buffers: dict[Source, AbstractTensor] = field(default_factory=dict)
    settings: dict[tuple[Any, ...], tuple[Any, Any]] = field(default_factory=dict)
    made: dict[str, Made] = field(default_factory=dict)
    writes: dict[int, AttributeWrites] = field(default_factory=dict)
    made_classes: list[type] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    hooked: list[Any] = field(default_factory=list)
    unseen: list[Value] = field(default_factory=list)
    hook_cells: list[tuple[CellValue, Value]] = field(default_factory=list)
    evaluate: ClassVar = evaluation

    @property
    def graph(self) -> GraphBuilder:
        """The graph that calls are recorded in now."""
        return self.graphs[-1]

    def line(self) -> SourceLine:
        """The innermost line that is the user's."""
        return self.frames.line()

    def close(self) -> None:
        """Let go of all values: in cycles with the tracer and each other they would keep the call's objects alive."""
        for value in self.objects.by_object.values():
            if isinstance(value, ObjectValue):
                value.attributes.owner = None
        self.sizes.close()
        parts = (self.objects.outside_memory, self.objects, self.inputs, self.guards, self.frames)
        for known in (
            self.writes, self.effects, self.regions, self.index_modes, self.streams, self.choices, self.hooked,
            self.unseen, self.made, self.frames, *[held for part in parts for held in vars(part).values()],
        ):  # fmt: skip
            if isinstance(known, (list, dict, set)):
                known.clear()
        for part in parts:
            vars(part).clear()

    def raises(self, cls: type, *args: Any) -> PythonRaise:
        """An exception of the evaluated program; raise the result."""
        values = [arg if isinstance(arg, Value) else self.objects.wrap(arg, None) for arg in args]
        return self.raising(ExceptionValue(cls, values))

    def raising(self, value: Value) -> PythonRaise:
        """The raise of an exception instance: what is being handled becomes its context."""
        if isinstance(value, ExceptionValue):
            value.note_raise(self)
            if self.frames.handled:
                value.follow(self.frames.handled[-1])
        return PythonRaise(value)

    def raises_real(self, error: Exception) -> PythonRaise:
        """The exception that a host call raised, in the evaluated program."""
        made = self.raises(type(error), *error.args)
        for name in ("name", "obj"):
            if isinstance(error, (AttributeError, NameError, ImportError)) and hasattr(error, name):
                made.value.given[1][name] = self.objects.wrap(getattr(error, name), None)  # type: ignore[attr-defined]
        return made

    def as_raise(self, args: list[Value]) -> PythonRaise:
        """The exception meant by generator.throw(type[, value[, traceback]])."""
        first = args[-2] if len(args) == 3 and isinstance(args[1], ExceptionValue) else args[0]
        if isinstance(first, ExceptionValue):
            return self.raising(first)
        kind = first.concrete() if isinstance(first, ClassValue) else None
        if kind is None or not issubclass(kind, BaseException):
            complaint = "exceptions must be classes or instances deriving from BaseException, not "
            raise self.raises(TypeError, complaint + first.python_type().__name__)
        has_value = len(args) > 1 and args[1].python_type() is not type(None)
        return self.raising(first.call(self, [args[1]] if has_value else [], {}))


def new_tracer(
    changing: frozenset[Source] = frozenset(), policy: SizePolicy = _FIXED, *, assumes: bool = True
) -> Tracer:
    """The state at the start of a capture.

    policy: which sizes are symbols. assumes: whether it may be assumed that data raises nothing.
    """
    frames, names, inputs = CallStack(), Names(), GraphInputs()
    guards, objects, sizes = ObjectGuards(names), KnownObjects(), Symbols(policy, frames.line)
    mode = DataSizedMode(inputs.size_of_data) if policy.of_data else AbstractMode()
    tracer = Tracer(
        changing, Checks(assumes), frames, sizes, names, guards, Places(names), objects, inputs, mode, torch_modes()
    )
    for part in (guards, objects, inputs, sizes):
        part.tracer = tracer
    return tracer
