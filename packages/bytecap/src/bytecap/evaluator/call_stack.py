"""The frames that are being evaluated, and what is asked of the innermost."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType

from bytecap.context_types import Frame, Value
from bytecap.errors import LoopTooLong, UnsupportedCall
from bytecap.guards.guard_set import is_exempt
from bytecap.objects.instances.exceptions import TracebackValue
from bytecap.objects.iterators import GeneratorValue
from stagewire.graph import SourceLine

FRAME_LIMIT = 200
ITERATION_LIMIT = 50_000


class CallStack(list["Frame"]):
    """The frames, innermost last.

    fault: the exception that left the innermost frame, and the user's line there.
    handled: exceptions that are being handled, innermost last.
    generators: those that have started.
    """

    def __init__(self) -> None:
        super().__init__()
        self.iterations = 0
        self.fault: tuple[Exception, SourceLine] | None = None
        self.handled: list[Value] = []
        self.generators: list[GeneratorValue] = []

    def close(self) -> None:
        """Let go of all frames and values."""
        self.fault = None
        for row in (self, self.handled, self.generators):
            row.clear()  # type: ignore[attr-defined]

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
        caller = _line_of_caller() if _is_plain_function(self[0]) else None
        return _line_of(self[-1]) if caller is None else caller

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


def _is_plain_function(frame: Frame) -> bool:
    """No method, and not what stands for a module: that has the place of its `forward`."""
    code, names = frame.function.code, frame.globals.real
    return "." not in code.co_qualname and names is not None and names.get("__file__") == code.co_filename


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
