"""The end of replacement code: the result; at a break, the frame's state, for the driver or the one who called.

root    ::= state -> driver                the frame of the function itself: its driver takes over
segment ::= state                          a segment: its driver is waiting for it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bytecap.breaks.points import Continue, Point, Resumption, Unbound, make_driver
from bytecap.breaks.shape import HELD
from bytecap.context_types import Frame
from bytecap.errors import CannotRebuild
from bytecap.guards.process_state import set_torch_modes, torch_modes
from bytecap.lookasides.index_mode import leave_entered
from bytecap.lookasides.kernel_choices import leave_settings
from bytecap.lookasides.torch_state import enter_open_regions
from bytecap.nodes.dual_levels import refuse_open_level
from bytecap.objects.arrays.inference import refuse_open_inference
from bytecap.objects.base import Value
from bytecap.objects.containers.sequences import Lazy
from bytecap.objects.signals import NULL, Handled, Saved
from bytecap.replacement.emit import Emitter
from bytecap.semantics.effects import emit_effects


def emit_epilogue(emitter: Emitter, result: Value) -> None:
    """Rebuild the result, replay side effects, return."""
    _emit_end(emitter, [result])
    emitter.load(result)
    if emitter.is_seen:
        # Else the traceback's exception would be held by the frame that the traceback holds.
        emitter.let_go()
    emitter.return_top()


def _emit_end(emitter: Emitter, results: list[Value]) -> None:
    """The side effects; settings and modes of torch are left as the captured code leaves them."""
    leave_settings(emitter.tracer)
    leave_entered(emitter.tracer)
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
    entries = [frame.locals.get(name) for name in point.variables] + _stack_entries(frame.stack, point)
    cells = [] if driver_of is None else [frame.cells[name] for name in driver_of.closure_names]
    values = [entry for entry in entries if isinstance(entry, Value)]
    _emit_end(emitter, [*values, *cells])

    def load_state() -> None:
        emitter.push_callable(Continue)
        emitter.constant(point)
        for entry in entries:
            _load(emitter, entry)
        emitter.build("LIST", len(entries))
        emitter.build("TUPLE", 2)
        emitter.call(1)
        emitter.let_go()

    if driver_of is None:
        load_state()
        emitter.return_top()
        return
    with emitter.unseen():
        emitter.constant(driver_of)
        emitter.constant(emitter.names)
        emitter.push(tuple(cells))
        emitter.call_function(make_driver, arguments=3)
        emitter.call_top_with(load_state)
    emitter.return_top()


def _stack_entries(stack: Sequence[Any], point: Point) -> list[Any]:
    """What a state holds of the stack."""
    if len(stack) != len(point.shape):
        raise CannotRebuild("a stack that is not as the compiler makes it")
    return [_held(value, kind) for value, kind in zip(stack, point.shape, strict=True) if kind in HELD]


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
