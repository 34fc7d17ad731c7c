"""The state of one capture: its graph, guards, objects and sizes, a part each; the call stack, and what it raises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from absint import AbstractMode, AbstractTensor
from absint.data_sizes import DataSizedMode
from bytecap.evaluator import evaluate as evaluation
from bytecap.evaluator.call_stack import CallStack
from bytecap.evaluator.graph_inputs import GraphInputs
from bytecap.evaluator.known_objects import KnownObjects
from bytecap.evaluator.object_guards import ObjectGuards
from bytecap.graph.builder import GraphBuilder, Made
from bytecap.graph.size_policy import SizePolicy
from bytecap.guards.global_sources import Places
from bytecap.guards.guard_set import Names
from bytecap.guards.process_state import TorchModes, torch_modes
from bytecap.nodes.chosen_tensors import Choice
from bytecap.nodes.data_checks import Checks
from bytecap.objects.base import PythonRaise, Value
from bytecap.objects.classes import ClassValue
from bytecap.objects.functions import CellValue
from bytecap.objects.instances.exceptions import ExceptionValue
from bytecap.objects.instances.writes import ClassWrites, TensorWrites
from bytecap.objects.numbers.symbols import Symbols
from stagewire.capture import Source
from stagewire.graph import SourceLine

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
    numbers_in_buffers: dict[Source, AbstractTensor] = field(default_factory=dict)
    settings: dict[tuple[Any, ...], tuple[Any, Any]] = field(default_factory=dict)
    made: dict[str, Made] = field(default_factory=dict)
    class_writes: dict[type, ClassWrites] = field(default_factory=dict)
    made_classes: list[type] = field(default_factory=list)
    tensor_writes: dict[int, TensorWrites] = field(default_factory=dict)
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
        self.objects.close()
        self.inputs.close()
        for part in (self.guards, self.objects, self.inputs):
            del part.tracer
        for closed in (self.frames, self.sizes):
            closed.close()
        for known in (
            self.class_writes, self.effects, self.regions, self.index_modes, self.choices, self.hooked, self.unseen,
            self.made,
        ):  # fmt: skip
            known.clear()  # type: ignore[attr-defined]

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
