"""The state of one capture: its graph, guards, objects and sizes, a part each; the call stack, and what it raises."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from absint import AbstractMode, AbstractTensor
from absint.data_sizes import DataSizedMode
from bytecap.errors import LoopTooLong, UnsupportedCall
from bytecap.evaluator.evaluate import Evaluate
from bytecap.evaluator.graph_inputs import GraphInputs
from bytecap.evaluator.known_objects import KnownObjects
from bytecap.evaluator.object_guards import ObjectGuards
from bytecap.graph.builder import GraphBuilder
from bytecap.graph.size_policy import SizePolicy
from bytecap.graph.size_symbols import SizeSymbols
from bytecap.guards.global_sources import Places
from bytecap.guards.guard_set import Names, is_exempt
from bytecap.guards.process_state import torch_modes
from bytecap.nodes.data_checks import Checks
from bytecap.objects.base import Value
from bytecap.objects.cells import CellValue
from bytecap.objects.classes import ClassValue
from bytecap.objects.exceptions import ExceptionValue, TracebackValue
from bytecap.objects.float_inputs import GivenFloats
from bytecap.objects.iterators import GeneratorValue
from bytecap.objects.signals import PythonRaise
from bytecap.objects.writes import ClassWrites, TensorWrites
from stagewire.capture import (
    Source,
)
from stagewire.graph import SourceLine

if TYPE_CHECKING:
    from bytecap.evaluator.frame import Frame

FRAME_LIMIT = 200
_FIXED = SizePolicy(enabled=False)
ITERATION_LIMIT = 50_000


class Tracer:
    """Everything that one capture knows; abstract values take it as their first argument.

    changing: where numbers are that the capture must not fix. assumes: whether it may assume that data raises nothing.
    made: inputs that the replacement makes, by its locals: their names in the graph, and how. policy: which sizes are
    symbols.
    """

    evaluate = Evaluate

    def __init__(
        self, changing: frozenset[Source] = frozenset(), policy: SizePolicy = _FIXED, *, assumes: bool = True
    ) -> None:
        self.changing = changing
        self.checks = Checks(assumes)
        self.sizes = SizeSymbols(policy, self.line)
        self.graph = GraphBuilder()
        self.floats = self.sizes.env.given = GivenFloats(self)
        self.names = Names()
        self.guards = ObjectGuards(self)
        self.places = Places(self.names)
        self.objects = KnownObjects(self)
        self.inputs = GraphInputs(self)
        self.mode = DataSizedMode(self.inputs.size_of_data) if policy.of_data else AbstractMode()
        self.modes = torch_modes()
        self.frames: list[Frame] = []
        self.iterations = 0
        self.fault: tuple[Exception, SourceLine] | None = None
        self.handled: list[Value] = []
        self.effects: list[Any] = []
        self.regions: list[Value] = []
        self.index_modes: list[Value] = []
        self.numbers_in_buffers: dict[Source, AbstractTensor] = {}
        self.inference: str | None = None
        self.settings: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self.made: dict[str, tuple[str, Callable[[], torch.Tensor]]] = {}
        self.class_writes: dict[type, ClassWrites] = {}
        self.tensor_writes: dict[int, TensorWrites] = {}
        self.generators: list[GeneratorValue] = []
        self.hooked: list[Any] = []
        self.hook_cells: list[tuple[CellValue, Value]] = []

    def close(self) -> None:
        """Let go of all values: in cycles with the tracer and each other they would keep the call's objects alive."""
        self.fault = None
        self.objects.close()
        self.inputs.tensors.clear()
        for part in (self.guards, self.objects, self.inputs):
            del part.tracer
        self.sizes.close()
        self.floats.close()
        self.class_writes.clear()
        rows = (self.frames, self.handled, self.effects, self.regions, self.index_modes, self.generators, self.hooked)
        for row in rows:
            row.clear()

    def check_generators(self) -> None:
        """No generator is left where it would still clean up: CPython does that when it drops the generator."""
        for generator in self.generators:
            if generator.cleans_up():
                name = generator.frame.function.code.co_qualname
                raise UnsupportedCall(f"generator {name} is left within a try or with statement")

    @contextlib.contextmanager
    def entering(self, frame: Frame) -> Iterator[None]:
        """Run a frame on top of the others."""
        if len(self.frames) >= FRAME_LIMIT:
            raise UnsupportedCall(f"more than {FRAME_LIMIT} nested calls")
        self.frames.append(frame)
        try:
            yield
        finally:
            self.frames.pop()

    def line(self) -> SourceLine:
        """The innermost line that is the user's (no file of torch), else the innermost."""
        for frame in reversed(self.frames):
            if not is_exempt(_module_of(frame)):
                return _line_of(frame)
        return _line_of(self.frames[-1]) if self.frames else SourceLine("<unknown>", 0)

    def module(self) -> str | None:
        """The module of the innermost frame."""
        return _module_of(self.frames[-1])

    def count_iteration(self) -> None:
        """One more turn of a loop of the evaluated program."""
        self.iterations += 1
        if self.iterations > ITERATION_LIMIT:
            raise LoopTooLong(f"more than {ITERATION_LIMIT} turns of loops")

    def note_fault(self, error: Exception) -> None:
        """Remember the user's line where an exception left the innermost frame."""
        if self.fault is None or self.fault[0] is not error:
            self.fault = error, self.line()

    def raises(self, cls: type, *args: Any) -> PythonRaise:
        """An exception of the evaluated program; raise the result."""
        values = [arg if isinstance(arg, Value) else self.objects.wrap(arg, None) for arg in args]
        return self.raising(ExceptionValue(cls, values))

    def raising(self, value: Value) -> PythonRaise:
        """The raise of an exception instance: what is being handled becomes its context."""
        if isinstance(value, ExceptionValue):
            value.note_raise(self)
            if self.handled:
                value.follow(self.handled[-1])
        return PythonRaise(value)

    def traceback(self) -> TracebackValue:
        """The traceback of what is raised now."""
        return TracebackValue(_line_of(self.frames[0]).line)

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


def _module_of(frame: Frame) -> str | None:
    names = frame.globals.real
    return None if names is None else names.get("__name__")


def _line_of(frame: Frame) -> SourceLine:
    code = frame.function.code
    line = frame.current.line if frame.current is not None else code.co_firstlineno
    return SourceLine(code.co_filename, line, code.co_qualname)
