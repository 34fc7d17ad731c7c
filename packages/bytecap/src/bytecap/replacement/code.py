"""Replacement code, its end first: the result; at a break, the frame's state, for the driver or the one who called.

root    ::= state -> driver                the frame of the function itself: its driver takes over
segment ::= state                          a segment: its driver is waiting for it
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import CodeType
from typing import Any

from bytecap.breaks.points import Continue, Point, Resumption, Unbound, make_driver
from bytecap.breaks.shape import HELD
from bytecap.bytecode.assembler import Assembler, assemble
from bytecap.bytecode.wrappers import on_inner_tensors
from bytecap.context_types import Frame
from bytecap.errors import CannotRebuild
from bytecap.guards.process_state import set_torch_modes, torch_modes
from bytecap.hook import INPUTS
from bytecap.lookasides.torch_state import apply_settings, enter_open_regions
from bytecap.nodes.gradients import refuse_open_level
from bytecap.objects.arrays.inference import refuse_open_inference, with_inference_results
from bytecap.objects.base import NULL, Handled, Saved, Value
from bytecap.objects.containers.sequences import Lazy
from bytecap.objects.instances.random_streams import OutsideRandom
from bytecap.replacement.emit import Emitter, emit_source, symbol_local
from bytecap.replacement.plain_run import UNDO, emit_guarded_call, noted_states
from bytecap.semantics.effects import emit_effects


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
    refuse_open_inference(emitter.tracer)
    refuse_open_level(emitter.tracer)
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
#                     call of the function itself, return (`bytecap.replacement.plain_run`)
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
