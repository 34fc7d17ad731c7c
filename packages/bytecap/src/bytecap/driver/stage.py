"""The stage: one Python frame in, a `Capture` document and replacement bytecode out.

capture(frame_view, options) -> CaptureResult
CaptureResult.replacement(compiled) -> code object that calls `compiled` and gives the frame's result
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from absint.errors import DataDependentError, SpecializedSize
from bytecap import errors
from bytecap.breaks.points import Break
from bytecap.bytecode.decode import InstructionTrace
from bytecap.driver.size_changes import Open, decided_by_data
from bytecap.driver.undo import Changes
from bytecap.evaluator.frame import Frame
from bytecap.evaluator.tracer import Tracer, new_tracer
from bytecap.graph.size_policy import SizePolicy
from bytecap.guards.native import global_state
from bytecap.guards.process_state import capture_environment, guard_modes
from bytecap.nodes.chosen_tensors import check_choices
from bytecap.nodes.constant_tensors import counted_buffers
from bytecap.nodes.data_checks import changes_of
from bytecap.objects.arrays.tensor_hooks import refuse_rebound
from bytecap.objects.base import NotConcrete, PythonRaise
from bytecap.objects.containers.sequences import Lazy
from bytecap.objects.functions import FunctionValue
from bytecap.objects.instances.exceptions import ExceptionValue
from bytecap.objects.numbers.symbols import as_tensor
from bytecap.replacement.code import emit_epilogue, emit_leave, replacement_code
from bytecap.replacement.emit import Emitter
from bytecap.semantics.effects import SeedEffect, counted_places
from bytecap.torch_capabilities import ESSENTIAL, TORCH
from stagewire.capabilities import MissingCapability
from stagewire.capture import Capture, Cell, Code, GlobalState, Guard, Local, Source
from stagewire.graph import Graph
from stagewire.types import TensorType


@dataclass(frozen=True)
class Options:
    """How frames are captured.

    allow_empty: capture frames without any tensor operation too (else they are `NoTensorWork`).
    """

    allow_empty: bool = False


_FIXED = SizePolicy(enabled=False)


@dataclass(frozen=True)
class CaptureResult:
    """A captured frame.

    capture: the document. guards: its conditions, the torch state first. objects: the live objects that
    guards, handles and constant inputs name. example_inputs: the real tensors of this call, in input order.
    changes: what the graph changes besides its outputs, which is put back where it raises or a check fails.
    counted: where the numbers are that the code replaces by what it computes from them. of_data: see `size_changes`.
    effects: as in `bytecap.events.Captured`. seeds: calls in front of the graph that seed random streams. trace: the
    way of the frame.
    """

    capture: Capture
    guards: tuple[Guard, ...]
    objects: Mapping[str, Any]
    example_inputs: tuple[torch.Tensor, ...]
    emitter: Emitter
    code: CodeType
    changes: Changes
    counted: frozenset[Source] = frozenset()
    of_data: frozenset[Open] = frozenset()
    effects: tuple[tuple[str, str], ...] = ()
    seeds: tuple[tuple[Callable[[int], Any], int], ...] = ()
    trace: InstructionTrace | None = None

    @property
    def has_graph(self) -> bool:
        """Whether the graph does anything (else the replacement does not call it)."""
        return bool(self.capture.graph.nodes)

    @property
    def copies_for_data(self) -> bool:
        """Whether so much has to be copied before each call, for the numbers that data decides, that the graph is
        better to end in front of these: more than a quarter of what it reads.

        A program of several parts may raise when it has written some of its inputs.
        """
        if not self.changes.written or not self.emitter.tracer.graph.numbers:
            return False
        sizes = [one.nbytes if isinstance(one, torch.Tensor) else 0 for one in self.example_inputs]
        return 4 * sum(sizes[position] for position in self.changes.written) > sum(sizes)

    def replacement(self, compiled: Callable[..., Any] | None, *, undone: bool = True) -> CodeType:
        """Code with the frame's arguments that calls `compiled(*inputs) -> tuple` and rebuilds the result.

        With checks, `compiled` is an `Undone`: None makes the function run plain. So does an error where it is
        `undone`: it has changed nothing then (see `bytecap.driver.undo`).

        The guard program that stands before it must hand over the values at `input_sources`; parameters that the
        code makes are made first.
        """
        called = compiled if self.has_graph else None
        return replacement_code(self.code, self.emitter, called, checked=bool(self.capture.checks), undone=undone)

    def close(self) -> None:
        """Let go of the call's objects, when no replacement is to be made any more."""
        self.emitter.tracer.close()

    @property
    def input_sources(self) -> tuple[Source, ...]:
        """Where the graph's inputs are read; none when the graph is not called."""
        made = self.emitter.tracer.graph.made
        inputs = self.capture.inputs if self.has_graph else ()
        return tuple(item.source for item in inputs if item.value.name not in made)


def capture(
    view: Any,
    options: Options | None = None,
    until: Break | None = None,
    changing: frozenset[Source] = frozenset(),
    *,
    assumes: bool = True,
    policy: SizePolicy = _FIXED,
    is_rest: bool = False,
    is_part: bool = False,
) -> CaptureResult:
    """Evaluate a frame that is about to start. Raises `CannotCapture` subclasses.

    `view` has `code`, `globals`, `locals` (arguments by name) and `cells` (free variable -> cell).
    until: end there, and hand over the frame's state. changing: where numbers are that are not to be fixed.
    assumes: whether branches on data may be taken to raise nothing (see `nodes.data_checks`).
    policy: which sizes are symbols. is_rest: views alone are not worth a graph. is_part: the frame is of a part of a
    function, which other parts call.
    """
    options = Options() if options is None else options
    try:
        TORCH.require(*ESSENTIAL)
        tracer = new_tracer(changing, policy, assumes=assumes)
    except MissingCapability as error:
        raise errors.UnsupportedFrame(error.message, fix=error.fix) from None
    tracer.frames.is_part = is_part
    state = global_state()
    trace = InstructionTrace(None if until is None else until.count)
    with capture_environment(tracer):
        try:
            frame = _first_frame(tracer, view)
            frame.trace = trace
            emitter = _evaluate_and_emit(tracer, frame, view, until, not options.allow_empty, is_rest)
            changes = changes_of(tracer)
        except Exception as error:
            refused = _refusal(tracer, error, state, trace, view.code)
            try:
                raise refused from refused.__cause__
            finally:
                del refused  # an exception in a variable of a frame that it went through is a cycle
    return _result(tracer, view, state, emitter, frame, changes)


def _result(
    tracer: Tracer, view: Any, state: GlobalState, emitter: Emitter, frame: Frame, changes: tuple[frozenset[str], bool]
) -> CaptureResult:
    written, is_final = changes
    graph = tracer.graph.finish([*emitter.outputs, *tracer.checks.outputs])
    inputs = tuple(tracer.graph.inputs)
    places = tuple(number for number, item in enumerate(inputs) if item.value.name in written)
    guards = _conditions(tracer, state)
    document = Capture(
        code=Code(view.code.co_qualname, view.code.co_filename, view.code.co_firstlineno),
        inputs=inputs,
        graph=graph,
        guards=guards,
        symbols=tracer.sizes.documents(),
        state=state,
        portable=not tracer.places.held,
        functions=tuple(tracer.graph.functions),
        checks=tracer.checks.documents(len(emitter.outputs)),
        checkpoints=tuple(tracer.graph.checkpoints),
    )
    examples = tracer.inputs.examples()
    hints, made = tracer.sizes.env.hints, tracer.graph.made
    for item in inputs:
        name = item.value.name
        if name in made:
            examples[name] = tracer.made[item.source.name].example()  # type: ignore[union-attr,misc]
        elif item.role in ("symbol", "number"):
            examples[name] = hints[name] if item.role == "symbol" else as_tensor(hints[name])
    return CaptureResult(
        document,
        guards,
        tracer.names.objects,
        tuple(examples[item.value.name] for item in inputs),  # type: ignore[misc]
        emitter,
        view.code,
        Changes(places, is_final, _random_devices(graph) if tracer.mode.may_draw else ()),
        counted_places(tracer.effects) | counted_buffers(tracer),
        decided_by_data(frame),
        tuple(tracer.replayed),
        tuple((seed.function, seed.args[0].concrete()) for seed in tracer.effects if isinstance(seed, SeedEffect)),
        frame.trace,
    )


def _random_devices(graph: Graph) -> tuple[torch.device, ...]:
    """The devices whose random streams a graph that draws may draw from."""
    values = (*graph.inputs, *(value for node in graph.nodes for value in node.results))
    names = {value.type.device for value in values if isinstance(value.type, TensorType)}
    return tuple(torch.device(name) for name in sorted(names) if name == "cpu" or name.startswith("cuda"))


def _conditions(tracer: Tracer, state: GlobalState) -> tuple[Guard, ...]:
    return state, *tracer.guards.all(), *tracer.sizes.env.relations


def place(code: CodeType) -> str:
    """Where a code object begins, as errors name it."""
    return f"{code.co_filename}:{code.co_firstlineno} in {code.co_qualname}"


def _refusal(
    tracer: Tracer, error: Exception, state: GlobalState, trace: InstructionTrace, code: CodeType
) -> errors.CannotCapture:
    refused = _as_refusal(error)
    refused.guards, refused.objects = _conditions(tracer, state), tracer.names.objects
    refused.symbols = tracer.sizes.documents()
    refused.trace = None if refused.is_whole else trace
    if refused.where is None:
        known = tracer.frames.fault is not None and tracer.frames.fault[0] is error
        refused.where = str(tracer.frames.fault[1]) if known else place(code)  # type: ignore[index]
    tracer.close()
    _clear_frames(error)
    return refused


def _clear_frames(error: BaseException | None) -> None:
    """Empty the frames that an exception and its causes went through: some hold the exception, and all hold values."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _as_refusal(error: Exception) -> errors.CannotCapture:
    match error:
        case errors.CannotCapture():
            return error
        case PythonRaise(value=value):
            text = value.message() if isinstance(value, ExceptionValue) else ""
            return errors.RaisedInCapture(f"the captured code raises {value.python_type().__name__}: {text}")
        case SpecializedSize():
            return errors.FixedMarkedSize(error.message, where=error.where, fix=error.fix)
        case DataDependentError():
            return errors.DataDependent(error.message)
        case NotConcrete():
            return errors.CannotCapture(f"a plain Python value is needed, not {error.args[0]!r}")
        case MissingCapability():
            return errors.UnsupportedCall(error.message, fix=error.fix)
        case RecursionError():
            return errors.UnsupportedCall("calls nested too deeply to evaluate")
    fault = errors.EvaluatorFault(f"{type(error).__name__} in the evaluator: {error}")
    fault.__cause__ = error
    return fault


def _evaluate_and_emit(
    tracer: Tracer, frame: Frame, view: Any, until: Break | None, needs_work: bool, is_rest: bool
) -> Emitter:
    guard_modes(tracer)
    emitter = Emitter(tracer, view.code, view.globals)
    with tracer.frames.entering(frame):
        result = frame.run()
        tracer.frames.check_generators()
        refuse_rebound(tracer)
        if until is not None:
            point = until.resumption.target(until.index_of(frame.pc))
            emit_leave(emitter, frame, point, until.resumption if until.segment is None else None)
        else:
            if needs_work and not tracer.graph.has_work:
                raise errors.NoTensorWork(f"{view.code.co_qualname} calls no tensor operation")
            if needs_work and is_rest and tracer.inputs.has_views_only:
                raise errors.NoTensorWork(f"{view.code.co_qualname} computes nothing but views behind a break")
            emit_epilogue(emitter, result)
        check_choices(tracer, emitter.outputs)
        tracer.guards.written()
        tracer.guards.ragged()
        tracer.guards.changed()
        tracer.guards.hashed()
        tracer.guards.decimals()
    return emitter


def _first_frame(tracer: Tracer, view: Any) -> Frame:
    closure = []
    for name in view.code.co_freevars:
        cell = tracer.objects.cell(view.cells[name], Cell(name))
        cell.frame_name = name
        closure.append(cell)
    function = FunctionValue(
        view.code, tracer.objects.set_frame_globals(view.globals), name=view.code.co_name, closure=tuple(closure)
    )
    bound: dict[str, Any] = {name: Lazy(value, Local(name)) for name, value in view.locals.items()}
    return Frame(tracer, function, bound)


__all__ = ["CaptureResult", "capture"]
