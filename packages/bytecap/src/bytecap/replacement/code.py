"""Replacement code, its end first: the result; at a break, the frame's state, for the driver or the one who called.

root    ::= state -> driver                the frame of the function itself: its driver takes over
segment ::= state                          a segment: its driver is waiting for it
"""

from __future__ import annotations

import logging
import operator
import sys
import warnings
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

from bytecode import BinaryOp

from bytecap.breaks.flow import HELD
from bytecap.breaks.points import Continue, Point, Resumption, Unbound, make_driver
from bytecap.bytecode.assembler import Assembler, assemble
from bytecap.bytecode.decode import argument_names
from bytecap.bytecode.wrappers import on_inner_tensors
from bytecap.context_types import Frame
from bytecap.errors import CannotRebuild
from bytecap.events import CaptureWarning
from bytecap.guards.process_state import set_torch_modes, torch_modes
from bytecap.hook import INPUTS, plain
from bytecap.lookasides.torch_state import apply_settings, enter_open_regions
from bytecap.objects.arrays.inference import with_inference_results
from bytecap.objects.base import NULL, Handled, Saved, Value
from bytecap.objects.containers.sequences import Lazy
from bytecap.objects.instances.random_streams import OutsideRandom
from bytecap.replacement.emit import Emitter, emit_source, symbol_local
from bytecap.semantics.effects import emit_effects
from bytecap.torch_capabilities import TORCH
from stagewire.errors import DATA_ERRORS, PartlyDone, StageError


def emit_epilogue(emitter: Emitter, result: Value) -> None:
    """Rebuild the result, replay side effects, return."""
    _emit_end(emitter, [result])
    emitter.load(result)
    if emitter.is_seen:
        # Else the traceback's exception would be held by the frame that the traceback holds.
        emitter.let_go_of_all()
    emitter.return_top()


def _emit_end(emitter: Emitter, results: list[Value]) -> None:
    """The side effects; settings and modes of torch are left as the captured code leaves them."""
    apply_settings(emitter.tracer)
    graph = emitter.tracer.graph
    if graph.inference.is_on:
        raise CannotRebuild("torch.inference_mode that is entered")
    if graph.dual_writes is not None:
        raise CannotRebuild("torch.autograd.forward_ad.dual_level that is entered")
    emit_effects(emitter, results)
    modes = torch_modes()
    if modes != emitter.tracer.modes:
        emitter.call_function(set_torch_modes, modes)
        emitter.pop()


def emit_leave(emitter: Emitter, frame: Frame, point: Point, driver_of: Resumption | None) -> None:
    """Replay side effects, hand over the state of `frame` at `point`.

    driver_of: where the driver comes from, for the function's own frame; None for a segment.
    """
    enter_open_regions(emitter.tracer)
    if len(frame.stack) != len(point.shape):
        raise CannotRebuild("a stack that is not as the compiler makes it")
    held = [_held(value, kind) for value, kind in zip(frame.stack, point.shape, strict=True) if kind in HELD]
    entries = [*map(frame.locals.get, point.variables), *held]
    cells = [] if driver_of is None else [frame.cells[name] for name in driver_of.closure_names]
    values = [entry for entry in entries if isinstance(entry, Value)]
    _emit_end(emitter, [*values, *cells])

    def load_state() -> None:
        emitter.constant(point)
        for entry in entries:
            _load(emitter, entry)
        emitter.build("LIST", len(entries))
        emitter.build("TUPLE", 2)

    if driver_of is None:
        emitter.push_callable(Continue)
        load_state()
        emitter.call(1)
        emitter.let_go_of_all()
        emitter.return_top()
        return
    with emitter.unseen():
        if cells:
            emitter.constant(driver_of)
            emitter.constant(emitter.names)
            emitter.push(tuple(cells))
            emitter.call_function(make_driver, arguments=3)
            emitter.top_as_callable()
        else:
            emitter.push_callable(driver_of.driver_without_cells(emitter.names))
        load_state()
        emitter.let_go_of_all()
        emitter.call(1)
    emitter.return_top()


def _held(value: Any, kind: str) -> Any:
    if isinstance(value, Handled):
        return value.raised
    if value is NULL or isinstance(value, Saved) or kind == "saved":
        raise CannotRebuild("a stack that is not as the compiler makes it")
    return value


def _load(emitter: Emitter, entry: Any) -> None:
    if entry is None:
        emitter.constant(Unbound)
    elif isinstance(entry, Lazy):
        # An argument that was never looked at.
        emitter.load_local(entry.source.name)  # type: ignore[union-attr]
    else:
        emitter.load(entry)


# -- The code that runs in a frame's place while its guards hold.
#
#     replacement ::= new parameters, numbers drawn at random and what is computed of them,
#                     call of the compiled graph, rebuilt result, side effects, return
#                   | call of the compiled graph, which raises, or whose checks fail:
#                     call of the function itself, return (`bytecap.replacement.code`)
#
# The graph's inputs were read by the guard program already, in C: it hands them over as the tuple
# in the local `hook.INPUTS`.


def replacement_code(
    code: CodeType, emitter: Emitter, compiled: Callable[..., Any] | None, *, checked: bool = False, undone: bool = True
) -> CodeType:
    """Code with the arguments and free variables of `code`.

    emitter: what follows the graph call. compiled: `compiled(*inputs) -> tuple of outputs`, or None for no call.
    checked: it gives None where the function is to run plain. undone: where it raises, it has changed nothing.
    """
    head, made = (Emitter(emitter.tracer, code, emitter.names) for _ in range(2))
    for place, one in emitter.tracer.made.items():
        made.call_with(one.function, *one.parts)
        made.store_local(place)
    symbols = made.symbols | emitter.symbols
    for name, source in symbols.items():  # before the graph, which may change what they are read from
        emit_source(head, source, emitter.tracer.names.objects)
        head.store_local(symbol_local(name))
    undo = None
    if drawn := [effect for effect in emitter.tracer.effects if isinstance(effect, OutsideRandom)]:
        undo = UNDO
        head.call_with(noted_states, *drawn)
        head.store_local(undo)
        emit_guarded_call(head, code, lambda: head.instructions.extend(made.instructions), undo)
    else:
        head.instructions += made.instructions
    if compiled is not None:
        if undone:
            emit_guarded_call(head, code, lambda: _emit_call(head, emitter, compiled), undo, checked=checked)
        else:
            _emit_call(head, emitter, compiled)
        if emitter.outputs:
            head.unpack(len(emitter.outputs))
            for name in emitter.outputs:
                head.store_local(f".out_{name}")
        else:
            head.pop()
    return assemble(code, head.instructions + emitter.instructions)


def _emit_call(head: Assembler, emitter: Emitter, compiled: Callable[..., Any]) -> None:
    inference = emitter.tracer.graph.inference.names
    if places := frozenset(at for at, name in enumerate(emitter.outputs) if name in inference):
        compiled = with_inference_results(compiled, places)
    outside = emitter.tracer.inputs.outside()
    if outside.wrappers or outside.subclassed:
        links = tuple(tuple(link) for _, *link in outside.wrappers)
        compiled = on_inner_tensors(compiled, links, outside.subclassed)
    head.push_callable(compiled)
    head.load_local(INPUTS)
    head.let_go(INPUTS)
    graph = emitter.tracer.graph
    if wanted := [item.source for item in graph.inputs if item.value.name in graph.made]:
        for source in wanted:
            head.load_local(source.name)  # type: ignore[union-attr]
        head.build("TUPLE", len(wanted))
        head.call_function(operator.add, arguments=2)
    if outside.wrappers:
        for source, *_ in outside.wrappers:
            emit_source(head, source, emitter.tracer.names.objects)
        head.build("TUPLE", len(outside.wrappers))
        head.call_function(operator.add, arguments=2)
    head.call_with_tuple()


# -- The function itself, run plain in the place of a graph call that raised or whose checks failed.
#
#     frame ::= try: outputs = graph(inputs)
#               except Exception: the function itself, with the frame's arguments
#               if outputs is None: the function itself                           a check failed (`bytecap.driver.undo`)
#               what follows the graph
#
# Nothing of the frame has happened when its graph is called, and a graph that raises has changed nothing: so the
# function can start again, and does with its own effects and handlers what it does in eager. An exception is its own,
# from its own line. A segment behind a graph break is a function that starts there: it runs plain from there.
#

_log = logging.getLogger("bytecap")
_OUTPUTS = ".outputs"


UNDO = ".undo"
"""The local with what `noted_states` gave."""


def emit_guarded_call(
    out: Assembler, code: CodeType, emit_call: Callable[[], None], undo: str | None, *, checked: bool = False
) -> None:
    """Push what the call of a graph gives; the stack is empty before. Where it raises, or gives None if it is
    `checked`, return what the function itself gives. undo: the local of what is called before that."""

    def handle() -> None:  # the error is on the stack
        _emit_plain_run(out, code, undo)

    with out.catching(handle):  # which returns: what the call gives stays on the stack
        emit_call()
    if not checked:
        return
    out.store_local(_OUTPUTS)
    out.load_local(_OUTPUTS)
    with out.if_top_is(None):
        out.constant(None)
        _emit_plain_run(out, code, undo)
    out.load_local(_OUTPUTS)
    out.let_go(_OUTPUTS)


def noted_states(*generators: Any) -> Callable[[], None]:
    """What gives generators of random numbers the states that they have now."""
    states = [generator.getstate() for generator in generators]

    def restore() -> None:
        for generator, state in zip(generators, states, strict=True):
            generator.setstate(state)

    return restore


def _emit_plain_run(out: Assembler, code: CodeType, undo: str | None) -> None:
    """Pop an error or None, and return what the function itself gives; the frame lets go of its arguments."""
    out.constant(code)
    out.load_closure(code.co_freevars)
    (out.constant if undo is None else out.load_local)(undo)
    out.call_function(plain_function, arguments=4)
    out.top_as_callable()
    with out.unseen():
        _load_arguments(out, code)
        out.emit("CALL_FUNCTION_EX", 1)
        out.return_top()


def plain_function(
    error: BaseException | None, code: CodeType, closure: tuple[CellType, ...], undo: Callable[[], None] | None
) -> Callable[..., Any]:
    """The function of the frame that calls this, all of whose arguments are given; nobody captures while it runs.

    error: what the graph raised. undo: takes back what was drawn for it.

    Raises what no plain run may follow: an interrupt, the error of a graph that has changed its inputs, what the user's
    hooks on saved tensors raise (as a checkpoint's, to end a recomputation early), and a fault of the code that a stage
    made. A fault that may have its cause in the data is raised when the function itself raises nothing. The user is
    told of what else no data causes: of a stage's error at once, of any other (a fault in a kernel of a back end of
    Python's) when the function itself raises nothing.
    """
    function: Callable[..., Any] = FunctionType(code, sys._getframe(1).f_globals, code.co_name, None, closure or None)
    if isinstance(error, PartlyDone):
        raise error.error
    if error is not None and not isinstance(error, Exception):
        raise error
    if undo is not None:
        undo()
    if isinstance(error, StageError) and error.is_fault:
        if isinstance(error.__cause__, DATA_ERRORS):
            return plain(_raising(function, error))
        raise error
    if error is not None:
        text = f"the graph of {code.co_qualname} raised, the function runs plain: {type(error).__name__}: {error}"
        _log.info("%s", text)
        if isinstance(error, StageError) and not isinstance(error, DATA_ERRORS):
            warnings.warn(text, CaptureWarning, stacklevel=2)
        elif not isinstance(error, DATA_ERRORS):
            if TORCH.hooks_on_saved_tensors(True) is not None:
                raise error
            return plain(_telling(function, text))
    return plain(function)


def _raising(function: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        function(*args, **kwargs)
        raise error

    return run


def _telling(function: Callable[..., Any], text: str) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        warnings.warn(text, CaptureWarning, stacklevel=2)
        return result

    return run


def raising_code(function: FunctionType, error: BaseException) -> CodeType:
    """Code with the arguments of `function` that calls it, and raises `error` if it returns.

    For a frame that is expected to raise, under fullgraph: the program's own exception is better than a coded one.
    Should it return after all, the evaluator was wrong, and the refusal is raised instead of a result that no graph
    computed.
    """
    code = function.__code__
    out = Assembler(code.co_firstlineno)
    out.push_callable(_raising(function, error))
    _load_arguments(out, code)
    out.emit("CALL_FUNCTION_EX", 1)
    out.return_top()
    return assemble(code, out.instructions)


def _load_arguments(out: Assembler, code: CodeType) -> None:
    """Push the positional arguments and those by name; the frame lets go of them."""
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    more = list(argument_names(code)[code.co_argcount + code.co_kwonlyargcount :])
    for name in code.co_varnames[: code.co_argcount]:
        out.load_local(name)
    out.build("TUPLE", code.co_argcount)
    if code.co_flags & 4:
        out.load_local(more.pop(0))
        out.emit("BINARY_OP", BinaryOp.ADD)
    for name in named:
        out.constant(name)
        out.load_local(name)
    out.build("MAP", len(named))
    if code.co_flags & 8:
        out.load_local(more.pop())
        out.emit("DICT_UPDATE", 1)
    out.let_go(*argument_names(code))
