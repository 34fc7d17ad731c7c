"""`optimize(target, backend)`: a callable whose frames are captured, compiled by a backend, and replaced.

    call ::= guards of the entries, in C  --hit-->  replacement code (graph call, rebuilt result, side effects)
                                          --miss--> capture -> compile_guards -> backend -> new entry
                                          --refused-> entry that is the plain code, under the guards seen so far

Nothing is evaluated twice: a capture only looks at the frame, which then runs once, replaced or plain.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from bytecap.errors import BadOption, CannotCapture, NoTensorWork, RaisedInCapture, RecompileLimit
from bytecap.events import Captured, CaptureWarning, Event, LimitReached, Refused
from bytecap.guards import GuardError, compile_guards, explain
from bytecap.hook import Dispatcher, Entry, FrameView, Owner, enable, entries, plain, remove_entry, reset, skip
from bytecap.options import Options
from bytecap.raising import raising_code
from bytecap.registry import register
from bytecap.roots import root_of
from bytecap.stage import capture, frame_refusal, place
from bytecap.stances import may_compile
from stagewire.capture import Capture
from stagewire.errors import StageError

Backend = Callable[[Capture, tuple[Any, ...]], Callable[..., tuple[Any, ...]]]
_NAMES = ("__module__", "__name__", "__qualname__", "__doc__", "__type_params__")


def optimize(
    target: Callable[..., Any],
    backend: Backend,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    recompile_limit: int = 8,
    on_event: Callable[[Event], None] | None = None,
    options: Options | None = None,
) -> Callable[..., Any]:
    """A callable like `target` whose work is captured and run by what `backend` makes of it.

    target: a function, method, nn.Module (through its `__call__`, hooks included) or other callable.
    backend: `backend(capture, example_inputs) -> callable(*tensors) -> tuple of tensors`; its errors propagate.
    fullgraph: raise the coded error of what cannot be captured, instead of running that frame plain.
    recompile_limit: captures of one code object; past it new cases run plain with a warning (fullgraph: BC010).
    on_event: called with each `Event`; without it, refusals are shown as `CaptureWarning`, each once.
    options: how frames are captured.

    Errors: `CannotCapture` subclasses under fullgraph, and `BadOption` for dynamic=True. Errors of the program
    itself are raised by its plain run, as without optimize.

    >>> import torch
    >>> double = optimize(lambda x: x * 2, lambda capture, inputs: lambda x: (x + x,))
    >>> double(torch.ones(2))
    tensor([2., 2.])
    """
    if dynamic:
        raise BadOption("dynamic=True: sizes are fixed in each capture")
    if recompile_limit < 1:
        raise BadOption(f"recompile_limit={recompile_limit}: at least one capture is needed", fix="Pass 1 or more.")
    function, code = root_of(target)
    refusal = frame_refusal(code)
    if refusal is not None and fullgraph:
        raise refusal
    engine = _Engine(backend, fullgraph, recompile_limit, on_event, options)
    enable(code, engine.owner)
    if refusal is not None:
        engine.report(code, refusal, Refused(refusal))
    call = Dispatcher(engine.owner, function)
    for name in _NAMES:
        value = getattr(target, name, None)
        if value is not None:
            setattr(call, name, value)
    return call


@dataclass(frozen=True)
class _Compiled:
    """What an entry was made from: its payload."""

    capture: Capture
    function: Callable[..., Any] | None


class _Engine:
    """The captures of one `optimize` call."""

    def __init__(
        self,
        backend: Backend,
        fullgraph: bool,
        limit: int,
        on_event: Callable[[Event], None] | None,
        options: Options | None,
    ) -> None:
        self.backend = backend
        self.fullgraph = fullgraph
        self.limit = limit
        self.on_event = on_event
        self.options = options
        self.owner = Owner(self.on_miss, report=self.on_rejected)
        self._lock = threading.RLock()
        register(self)
        self._reported: set[tuple[CodeType, str, str | None]] = set()

    def on_miss(self, view: FrameView) -> Entry | None:
        """A frame for which no entry holds: an entry for it, or None to run it plain."""
        with self._lock:
            known = entries(view.code, self.owner)
            # Another thread may have made the entry while this one waited.
            for entry in known:
                if entry.guard.check(view):
                    remove_entry(view.code, entry)
                    return entry
            reason = explain(known[0].guard, view) if known else None
            if not may_compile(view.code, reason):
                return None
            if len(known) >= self.limit:
                self._report_limit(view, reason)
                return None
            return self._capture(view, reason)

    def reset(self) -> None:
        """Drop all versions, refusals, and what was reported."""
        with self._lock:
            for code in self.owner.codes:
                reset(code, self.owner)
            self._reported.clear()

    def on_rejected(self, view: FrameView, entry: Entry) -> None:
        """A new entry whose guards do not hold for its own frame any more: the backend changed what they read."""
        error = CannotCapture(
            f"the backend changed what the captured code depends on: {explain(entry.guard, view)}",
            where=place(view.code),
            fix="Leave modules and arguments as they are while compiling.",
        )
        if self.fullgraph:
            raise error
        self.report(view.code, error, Refused(error))

    def _capture(self, view: FrameView, reason: str | None) -> Entry | None:
        start = time.perf_counter()
        try:
            result = capture(view, self.options)
            guard = compile_guards(result.guards, view, objects=result.objects, inputs=result.input_sources)
        except CannotCapture as error:
            error.__context__ = None
            return self._refuse(view, error)
        except GuardError as error:
            return self._refuse(view, CannotCapture(error.message, where=error.where, fix=error.fix))
        seconds = time.perf_counter() - start
        compiled = self._compiled_before(view.code, result.capture)
        self._tell(Captured(result.capture, reason, seconds, reused=compiled is not None))
        if compiled is None and result.has_graph:
            try:
                compiled = plain(self.backend(result.capture, result.example_inputs))
            except StageError as error:
                if self.fullgraph or not error.refuses_program:
                    raise
                self.report(view.code, error, Refused(error))
                return Entry(guard, view.code, error.with_traceback(None))
        return Entry(guard, result.replacement(compiled), _Compiled(result.capture, compiled))

    def _compiled_before(self, code: CodeType, new: Capture) -> Callable[..., Any] | None:
        """The callable of an earlier capture that differs in its guards alone.

        A first call often changes what it reads (a cache filled, a default resolved): the second captures the same.
        """
        for entry in entries(code, self.owner):
            match entry.payload:
                case _Compiled(old, function) if _same_work(old, new):
                    return function
        return None

    def _refuse(self, view: FrameView, error: CannotCapture) -> Entry | None:
        if isinstance(error, NoTensorWork | RaisedInCapture):
            # Nothing to compile, or the plain run raises by itself: no fault of the program.
            self._tell(Refused(error))
        elif self.fullgraph:
            raise error
        else:
            self.report(view.code, error, Refused(error))
        try:
            guard = compile_guards(error.guards, view, objects=error.objects)
        except GuardError:
            if not self.fullgraph:
                skip(view.code, self.owner)
            return None
        # The traceback holds the evaluator's frames, and through them the tensors of this call.
        error = error.with_traceback(None)
        if self.fullgraph and isinstance(error, RaisedInCapture):
            return Entry(guard, raising_code(view.function, error), error)
        return Entry(guard, view.code, error)

    def _report_limit(self, view: FrameView, reason: str | None) -> None:
        error = RecompileLimit(
            f"{view.code.co_qualname} was captured {self.limit} times; the last reason: {reason}",
            where=place(view.code),
        )
        if self.fullgraph:
            raise error
        self.report(view.code, error, LimitReached(error))

    def report(self, code: CodeType, error: StageError, event: Event) -> None:
        """Tell the listener, or warn; each fault of a code object once."""
        key = (code, error.code, None if isinstance(error, RecompileLimit) else error.where)
        if key in self._reported:
            return
        self._reported.add(key)
        self._tell(event)
        if self.on_event is None:
            warnings.warn(f"runs plain: {error}", CaptureWarning, stacklevel=4)

    def _tell(self, event: Event) -> None:
        if self.on_event is not None:
            self.on_event(event)


def _same_work(old: Capture, new: Capture) -> bool:
    return (old.graph, old.functions, old.inputs, old.state) == (new.graph, new.functions, new.inputs, new.state)
