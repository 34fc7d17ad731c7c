"""What one optimized callable does when a frame fits none of its captures.

    miss    ::= capture -> entry                           the whole frame is one graph
              | break at an instruction -> entry           graph, side effects, then the driver (bytecap.breaks)
              | refusal -> entry that is the plain code    under the guards seen so far; callees are captured themselves
              | limit reached -> plain

Nothing is run twice: a capture only looks at the frame, which then runs once.

Threads do not wait for each other: no lock is held, since user code may run in a capture (a listener, a backend, a
finalizer, a signal handler), and a frame may hold locks of the program while what follows in it is captured. A code
object is captured by one thread at a time; others that miss it meanwhile run it plain. What an engine knows of a code
object is replaced as a whole, never changed.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

from bytecap import errors
from bytecap.breaks.outline import Outline, suspends
from bytecap.breaks.points import Break, Breaks
from bytecap.driver import size_changes
from bytecap.driver.executor import with_tensors
from bytecap.driver.frame_selection import is_wanted
from bytecap.driver.same_work import is_same_work
from bytecap.driver.stage import CaptureResult, Options, capture, place
from bytecap.driver.stances import may_compile, register
from bytecap.driver.undo import Seeded, Undone, undone
from bytecap.events import Broke, Captured, CaptureWarning, Event, LimitReached, Refused
from bytecap.graph.size_policy import SizePolicy
from bytecap.guards import GuardError, GuardProgram, compile_guards, explain, with_relations
from bytecap.guards.filtering import Filter, filtered
from bytecap.hook import Entry, FrameView, Owner, directives, enable, entries, plain, remove_entry, reset, skip
from bytecap.nodes.data_checks import CannotUndo
from bytecap.replacement.code import raising_code
from bytecap.torch_capabilities import TORCH
from stagewire.capture import Capture, Check, Guard, Local, Relation, Source, Symbol
from stagewire.collector import resting_collector
from stagewire.errors import StageError
from stagewire.graph import Node

Backend = Callable[[Capture, tuple[Any, ...]], Callable[..., tuple[Any, ...]]]
"""(capture, example inputs) to the callable on tensors that runs in its place."""
_log = logging.getLogger("bytecap")
_MOST_FAILURES = 3
"""After so many failed checks, the graphs of a function end at branches on data again."""


@dataclass(frozen=True)
class _Callee:
    """What replacement code calls.

    undone: whether it has changed nothing where it raises. keeps_inputs: whether it is best for inputs that stay the
    same objects (a backend's callable says so by an attribute).
    """

    call: Callable[..., Any]
    undone: bool
    keeps_inputs: bool


@dataclass(frozen=True)
class _Compiled:
    """What an entry was made from: its payload."""

    capture: Capture
    function: _Callee | None
    counted: frozenset[Source]
    assumes: tuple[Relation, ...] = ()


@dataclass(frozen=True)
class _Conditions:
    """Under what an entry holds, and where the inputs of its graph are. numbers: those of the symbols."""

    guards: tuple[Guard, ...]
    objects: Mapping[str, object]
    symbols: tuple[Symbol, ...]
    inputs: tuple[Source, ...]
    numbers: dict[str, int] = field(default_factory=dict)

    def compile(self, view: FrameView, keep: Filter | None) -> GuardProgram:
        """The program that checks these guards, of which a filter of the user's may drop some."""
        program = self._program(view)
        if keep is None:
            return program
        self.numbers.clear()
        of_symbols = {symbol.source for symbol in self.symbols}
        guards = filtered(program, view, [*self.inputs, *of_symbols], keep)
        own = set(self.guards)  # the others are those of the symbols
        return replace(self, guards=tuple(guard for guard in guards if guard in own))._program(view)

    def _program(self, view: FrameView) -> GuardProgram:
        return compile_guards(
            self.guards, view, objects=self.objects, symbols=self.symbols, inputs=self.inputs, numbers=self.numbers
        )


@dataclass(eq=False)
class Engine:
    """The captures of one `optimize` call."""

    backend: Backend
    fullgraph: bool
    limit: int
    on_event: Callable[[Event], None] | None
    options: Options | None
    policy: SizePolicy
    keep: Filter | None = None
    _capturing: dict[CodeType, int] = field(default_factory=dict)  # by which thread
    _resets: int = 0
    _roots: set[CodeType] = field(default_factory=set)
    _changing: dict[CodeType, frozenset[Source]] = field(default_factory=dict)
    _distrust: set[CodeType] = field(default_factory=set)  # whose data raises too often to assume that it does not
    _failures: Counter[CodeType] = field(default_factory=Counter)  # of checks
    _policies: dict[CodeType, SizePolicy] = field(default_factory=dict)
    _pending: dict[CodeType, list[Entry]] = field(default_factory=dict)
    _limited: set[CodeType] = field(default_factory=set)
    _reported: set[tuple[CodeType, str, str | None]] = field(default_factory=set)
    _regions: set[CodeType] = field(default_factory=set)  # of generators and coroutines, between two suspensions

    def __post_init__(self) -> None:
        self.warns = self.on_event is None
        self.owner = Owner(self.on_miss, recursive=not self.fullgraph, report=self.on_rejected)
        self._breaks = Breaks(lambda driver: skip(driver, self.owner))
        register(self)

    def adopt(self, target: Callable[..., Any], code: CodeType) -> Callable[..., Any]:
        """Capture frames of `code`, the root of `target`; what is called in its place."""
        if not suspends(code):
            self._adopt(code)
            return target
        outline = Outline(code, self.owner)
        self._roots.add(code)
        if outline.hindrance is not None:
            refusal = errors.UnsupportedFrame(f"{code.co_qualname} {outline.hindrance}", where=place(code))
            if self.fullgraph:
                raise refusal
            self.report(code, refusal, Refused(refusal))
            return target
        for region in outline.regions.values():
            self._regions.add(region.code)
            self._adopt(region.code)
        entry = outline.outlined(target)
        skip(entry.__code__, self.owner)
        return entry

    def _adopt(self, code: CodeType) -> None:
        self._roots.add(code)
        enable(code, self.owner)

    # -- what the hook asks

    def on_miss(self, view: FrameView) -> Entry | bool | None:
        """A frame for which no entry holds: an entry for it, or None to run it plain; False: and all that it calls."""
        if sys.is_finalizing():  # a finalizer, called when modules are gone: torch may crash
            return None
        code = view.code
        mark = directives.mark_of(view.function)
        if mark == "disabled":
            return Entry(None, code, mark, closed=True)
        if mark == "skipped" or not self._is_wanted(view):
            skip(code, self.owner)
            return None
        thread = threading.get_ident()
        try:
            if self._capturing.setdefault(code, thread) != thread:
                return False
            resets = self._resets
            made = self._entry_for(view)
        finally:
            if self._capturing.get(code) == thread:
                del self._capturing[code]
        if self._resets != resets:  # the frame runs plain, and the next one is captured
            self._forget(code)
            return False
        return made

    def _entry_for(self, view: FrameView) -> Entry | None:
        """The entry for a frame that missed; this thread alone is here with the frame's code."""
        code = view.code
        known = entries(code, self.owner)
        if len(known) >= self.limit and code in self._limited:
            return None
        # Another thread may have made the entry just now; it may not stand in the list yet.
        pending = [entry for entry in self._pending.get(code, ()) if entry not in known]
        self._pending[code] = pending
        for entry in (*known, *pending):
            if entry.guard.check(view):
                return entry
        reason = explain(known[0].guard, view, _symbols_of(known[0])) if known else None
        payload = known[0].payload if known else None
        counted = payload.counted if isinstance(payload, _Compiled) else frozenset()
        changed = () if self.fullgraph else size_changes.changed_values(known, view, counted, self.limit)
        if changed:
            self._leave_open(code, changed)
        if known:
            policy = self._policy_of(code)
            self._policies[code] = size_changes.with_changes(policy, known, view, _symbols_of(known[0]))
        if not may_compile(code, reason):
            return None
        if len(known) >= self.limit:
            if code not in self._roots and self._is_idle(code):
                # A callee without tensor work, called with ever other constants: what it calls is still captured.
                skip(code, self.owner)
            else:
                self._report_limit(view, reason)
            return None
        # Also between capture, guards and backend: what they leave is many and alive, a collection finds nothing.
        with resting_collector():
            made = self._capture_as_taken(view, reason)
            if made is not None and isinstance(made.payload, _Compiled) and not made.guard.check(view):
                # The backend changed what was read (a class that an import registered): captured once more.
                self._pending[code] = [*pending, made]
                made = self._capture_as_taken(view, explain(made.guard, view, _symbols_of(made)))
        if made is not None:
            self._pending[code] = [*pending, made]
        return made

    def _leave_open(self, code: CodeType, sources: Set[Source]) -> None:
        """Have captures of `code` not fix the values there."""
        self._changing[code] = self._changing.get(code, frozenset()) | sources

    def _is_idle(self, code: CodeType) -> bool:
        """Whether no version of the code, nor of what starts behind its breaks, has a graph."""
        versions = [entry.payload for part in self._breaks.parts_of(code) for entry in entries(part, self.owner)]
        return all(
            payload.function is None
            if isinstance(payload, _Compiled)
            else isinstance(payload, errors.NoTensorWork | errors.ChangingNumber)
            for payload in versions
        )

    def _is_wanted(self, view: FrameView) -> bool:
        code = view.code
        if code in self._breaks.drivers:
            return False
        return code in self._roots or self._breaks.is_segment(code) or is_wanted(view)

    def reset(self) -> None:
        """Drop all versions, refusals, and what was reported; a version that is being made is dropped when it is."""
        self._resets += 1
        for code in self.owner.marked:
            self._forget(code)
        for known in (
            self._pending, self._limited, self._reported, self._changing, self._distrust, self._failures,
            self._policies,
        ):  # fmt: skip
            known.clear()  # type: ignore[attr-defined]

    def _forget(self, code: CodeType) -> None:
        """Drop the versions of one code object, and what was noted while they were made."""
        reset(code, self.owner)
        self._limited.discard(code)
        for known in (self._pending, self._changing, self._policies):
            known.pop(code, None)  # type: ignore[attr-defined]

    def forget_other_threads(self) -> None:
        """In a forked child: the threads that captured are not there any more."""
        self._capturing.clear()

    def on_rejected(self, view: FrameView, entry: Entry) -> None:
        """A new entry whose guards do not hold for its own frame: the backend changed what they read, twice."""
        error = errors.CannotCapture(
            f"the backend changed what the captured code depends on: {explain(entry.guard, view, _symbols_of(entry))}",
            where=place(view.code),
            fix="Leave modules and arguments as they are while compiling.",
        )
        if self.fullgraph:
            raise error
        self.report(view.code, error, Refused(error))

    # -- captures

    def _policy_of(self, code: CodeType) -> SizePolicy:
        return self._policies.get(code, self.policy)

    def _capture_as_taken(self, view: FrameView, reason: str | None) -> Entry | None:
        """The entry; with all sizes fixed where a stage of the backend cannot take the symbols."""
        try:
            return self._capture(view, reason)
        except errors.FixedSizesNeeded as error:
            _log.info("%s is captured for each size: %s", view.code.co_qualname, error)
            self._policies[view.code] = self._policy_of(view.code).with_changes((), (), error.sources)
            return self._capture_as_taken(view, reason)
        except _EndsAtData:
            self._policies[view.code] = replace(self._policy_of(view.code), of_data=False)
            return self._capture_as_taken(view, reason)
        except _SizesRefused as refused:
            _log.info("%s is compiled for each size: %s", view.code.co_qualname, refused.__cause__)
            self._policies[view.code] = SizePolicy(
                enabled=False, of_data=self.fullgraph and self.policy.of_data, whole=self.policy.whole
            )
            return self._capture(view, reason)

    def _capture(self, view: FrameView, reason: str | None) -> Entry | None:
        start = time.perf_counter()
        try:
            result = self._evaluate(view)
            conditions = _Conditions(
                tuple(result.guards), result.objects, result.capture.symbols, tuple(result.input_sources)
            )
            guard = conditions.compile(view, self.keep)
        except (errors.FixedMarkedSize, errors.FixedSizesNeeded):
            raise
        except (errors.NoTensorWork, errors.RaisedInCapture) as error:
            return self._refuse(view, error)
        except CannotUndo:
            self._distrust.add(view.code)
            return self._capture(view, reason)
        except errors.CannotCapture as error:
            return self._broken(view, error, reason) or self._refuse(view, error)
        except GuardError as error:
            return self._refuse(view, errors.CannotCapture(error.message, where=error.where, fix=error.fix))
        return self._entry(view, result, conditions, guard, reason, start, whole=True)

    def _evaluate(self, view: FrameView, until: Break | None = None) -> CaptureResult:
        changing = self._changing.get(view.code, frozenset())
        assumes = view.code not in self._distrust
        policy, is_rest = self._policy_of(view.code), self._breaks.is_segment(view.code)
        is_part = is_rest or view.code in self._regions
        result = capture(
            view, self.options, until, changing, assumes=assumes, policy=policy, is_rest=is_rest, is_part=is_part
        )
        if result.copies_for_data and not self.fullgraph:
            result.close()
            raise _EndsAtData
        return result

    def _entry(
        self,
        view: FrameView,
        result: CaptureResult,
        conditions: _Conditions,
        guard: GuardProgram,
        reason: str | None,
        start: float,
        *,
        whole: bool,
    ) -> Entry:
        seconds = time.perf_counter() - start
        with contextlib.closing(result):
            compiled, assumes = self._compiled_before(view.code, result.capture)
            if result.has_graph or whole:
                event = Captured(result.capture, reason, seconds, compiled is not None, result.effects)
                self._tell(event)
            if compiled is None and result.has_graph:
                try:
                    function = self.backend(result.capture, result.example_inputs)
                    assumes = getattr(function, "assumes", ())
                    compiled = self._undone(view.code, result, function)
                except StageError as error:
                    # Floats of the capture, where the backend needs constants.
                    fixed = [item.source for item in result.capture.inputs if item.value.name in error.fixed_inputs]
                    if fixed:
                        needed = errors.FixedSizesNeeded(error.message, where=error.where)
                        needed.sources = tuple(fixed)
                        raise needed from error
                    if result.capture.symbols and error.needs_fixed_sizes:
                        raise _SizesRefused from error
                    if self.fullgraph or not error.refuses_program:
                        raise
                    hindered = self._hindered(result, error)
                    broken = hindered and self._broken(view, hindered, reason)
                    if broken is not None:
                        return broken
                    self.report(view.code, hindered or error, Refused(hindered or error))
                    return Entry(guard, view.code, error.with_traceback(None))
            if assumes:
                guard = with_relations(guard, assumes, conditions.numbers)
            payload = _Compiled(result.capture, compiled, result.counted, assumes)
            call = compiled and compiled.call
            if call is not None and result.seeds:
                call = plain(Seeded(call, result.seeds))
            replacement = result.replacement(call, undone=compiled is None or compiled.undone)
            return Entry(guard, replacement, payload, closed=whole)

    def _undone(self, code: CodeType, result: CaptureResult, function: Callable[..., Any]) -> _Callee:
        """The backend's callable, which looks at the checks of the capture, and changes nothing where it raises."""
        checks, keeps_inputs = result.capture.checks, getattr(function, "keeps_inputs", False)
        if not checks:
            atomic = undone(function, result.changes)
            call = plain(with_tensors(result.capture, atomic or function))
            return _Callee(call, atomic is not None, keeps_inputs)
        weakly = weakref.ref(self)

        def on_failure() -> None:
            engine = weakly()
            if engine is not None:
                engine.on_failed_check(code, checks)

        call = with_tensors(result.capture, function)
        TORCH.require("set_versions")
        return _Callee(plain(Undone(call, result.changes, len(checks), on_failure)), True, keeps_inputs)

    def on_failed_check(self, code: CodeType, checks: tuple[Check, ...]) -> None:
        """A frame ran plain because of its data; where that happens again and again, graphs end at the branch."""
        lines = ", ".join(str(line) for check in checks for line in check.lines)
        _log.info("%s: a runtime check does not hold, the frame runs plain (%s)", code.co_qualname, lines)
        self._failures[code] += 1
        if self._failures[code] < _MOST_FAILURES or self.fullgraph:
            return
        self._distrust.add(code)
        self._pending.pop(code, None)
        for entry in entries(code, self.owner):
            if isinstance(entry.payload, _Compiled) and entry.payload.capture.checks:
                remove_entry(code, entry)

    def _compiled_before(self, code: CodeType, new: Capture) -> tuple[_Callee | None, tuple[Relation, ...]]:
        """The callable of an earlier capture that does the same work, and what it assumes.

        A first call often changes what it reads (a cache filled, a default resolved): the second captures the same. And
        so do those of a function that takes one of several equal modules (experts).
        """
        parts = [code] if new.checks else self._breaks.parts_of(code)  # a failed check is one of its own code object
        for entry in [one for part in parts for one in (*entries(part, self.owner), *self._pending.get(part, ()))]:
            match entry.payload:
                case _Compiled(capture=old, function=_Callee(keeps_inputs=keeps) as function, assumes=assumes):
                    if is_same_work(old, new, keeps_inputs=keeps, keeps_sizes=bool(assumes)):
                        return function, assumes
        return None, ()

    # -- breaks

    def _broken(self, view: FrameView, error: errors.CannotCapture, reason: str | None) -> Entry | None:
        """The entry of a frame whose graph ends at an instruction; None where nothing is won by that."""
        if self.fullgraph or error.trace is None:
            return None
        start = time.perf_counter()
        places = list(self._breaks.places(view.code, error.trace))
        for until in places:
            try:
                result = self._evaluate(view, until)
                # A single call between two breaks is not worth a graph: it runs plain, as the instruction behind it.
                if len(result.capture.graph.nodes) == 1 and until is not places[-1] and view.code not in self._roots:
                    result.close()
                    result = self._evaluate(view, places[-1])
                if not result.has_graph and not until.resumption.plan.segments:
                    return None
                # What led to the break is guarded too: on another way the frame may be captured whole.
                conditions = _Conditions(
                    tuple(dict.fromkeys((*result.guards, *error.guards))),
                    {**result.objects, **error.objects},
                    tuple(dict.fromkeys((*result.capture.symbols, *error.symbols))),
                    tuple(result.input_sources),
                )
                guard = conditions.compile(view, self.keep)
            except CannotUndo:
                self._distrust.add(view.code)
                return self._capture(view, reason)
            except errors.FixedSizesNeeded:
                raise
            except (errors.CannotRebuild, errors.CannotCapture, GuardError):
                continue  # the next place may be one at which all that is live can be built again
            if self._is_news(view.code, error):
                _log.info("graph break: %s", error)
            self._tell(Broke(error.let_go(), result.capture if result.has_graph else None))
            if not result.has_graph:
                self._breaks.add_graphless(view.code)
            self._open_behind(view.code, error, result, until)
            made = self._entry(view, result, conditions, guard, reason, start, whole=False)
            until.resumption.renew_drivers()
            return made
        return None

    def _hindered(self, result: CaptureResult, error: StageError) -> errors.CannotCapture | None:
        """The end of a graph at the first call that hinders the backend; None where none does."""
        nodes = result.capture.graph.nodes
        position = next((at for at, node in enumerate(nodes) if _hinders(node, error)), None)
        if position is None or result.trace is None:
            return None
        refused = errors.CannotCapture(error.message, where=nodes[position].line or error.where, fix=error.fix)
        refused.code = error.code  # type: ignore[misc]
        refused.trace = result.trace.to_node(position)
        return refused

    def _open_behind(self, code: CodeType, error: errors.CannotCapture, result: CaptureResult, until: Break) -> None:
        """Have the segments behind a break leave open what differs in each call: what data decides, to begin with."""
        policy = self._policy_of(code)
        found = result.of_data.union(policy.dimensions, ((source, None) for source in policy.of_any_value))
        given = self._breaks.result_of(code, error.trace) if isinstance(error, errors.DataDependent) else None
        opened = dict.fromkeys(until.resumption.plan.segments.values() if found else (), found)
        if given is not None and given[2]:
            self._leave_open(given[0].code, {Local(given[1])})
        elif given is not None and self.policy.of_data:
            opened[given[0]] = found | {(Local(given[1]), None)}
        for segment, places in opened.items():
            own = self._policy_of(segment.code)
            self._policies[segment.code] = size_changes.with_open(own, places, segment.point.names)

    # -- refusals

    def _refuse(self, view: FrameView, error: errors.CannotCapture) -> Entry | None:
        error.__context__ = None
        if isinstance(error, errors.NoTensorWork | errors.RaisedInCapture):
            # Nothing to compile, or the plain run raises by itself: no fault of the program.
            self._tell(Refused(error))
        elif self.fullgraph:
            raise error
        else:
            self.report(view.code, error, Refused(error))
        try:
            guard = compile_guards(error.guards, view, objects=error.objects, symbols=error.symbols)
        except GuardError:
            if not self.fullgraph:
                skip(view.code, self.owner)
            return None
        error.let_go()
        if self.fullgraph and isinstance(error, errors.RaisedInCapture):
            return Entry(guard, raising_code(view.function, error), error)
        # What runs under a mode that sees single operations is the mode's business.
        return Entry(guard, view.code, error, closed=isinstance(error, errors.UnsupportedFrame))

    def _report_limit(self, view: FrameView, reason: str | None) -> None:
        error = errors.RecompileLimit(
            f"{view.code.co_qualname} was captured {self.limit} times; the last reason: {reason}",
            where=place(view.code),
        )
        if self.fullgraph:
            raise error
        self._limited.add(view.code)
        self.report(view.code, error, LimitReached(error))

    def report(self, code: CodeType, error: StageError, event: Event) -> None:
        """Tell the listener, or warn; each fault of a code object once."""
        if not self._is_news(code, error):
            return
        self._tell(event)
        # A fault in a callee ends graphs there alone: both sides of it are captured by themselves.
        in_callee = isinstance(error, errors.CannotCapture) and not str(error.where).endswith(f" in {code.co_qualname}")
        is_own = code in self._roots and not in_callee
        if self.warns and (is_own or isinstance(error, errors.RecompileLimit)):
            warnings.warn(f"runs plain: {error}", CaptureWarning, stacklevel=4)
        else:
            _log.info("%s: %s", "runs plain" if is_own else "graph break", error)

    def _is_news(self, code: CodeType, error: StageError) -> bool:
        key = (code, error.code, None if isinstance(error, errors.RecompileLimit) else error.where)
        if key in self._reported:
            return False
        self._reported.add(key)
        return True

    def _tell(self, event: Event) -> None:
        if self.on_event is not None:
            self.on_event(event)


class _EndsAtData(Exception):
    """The graph is better to end in front of what data decides."""


class _SizesRefused(Exception):
    """A stage of the backend cannot take size symbols; its error is the cause."""


def _hinders(node: Node, error: StageError) -> bool:
    """Whether a call is one that hinders, by its target or by what it gives."""
    return node.target in error.hindering or any(value.name == error.hindering_result for value in node.results)


def _symbols_of(entry: Entry) -> tuple[Symbol, ...]:
    match entry.payload:
        case _Compiled(capture=document):
            return document.symbols
        case errors.CannotCapture(symbols=symbols):
            return symbols
    return ()
