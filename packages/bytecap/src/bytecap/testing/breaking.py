"""Graph breaks by force: captures end where a rule says, as if the instruction there could not be captured.

with forced_breaks(once(7)): ...     the first capture ends at the 8th instruction that its frame executes
with forced_breaks(each(2)): ...     every capture (of frames, callees, segments) ends at its 3rd instruction
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from unittest.mock import patch

from bytecap.breaks.body import body_start
from bytecap.breaks.points import Point, Resumption, Segment
from bytecap.bytecode.decode import InstructionTrace
from bytecap.errors import UnsupportedInstruction
from bytecap.evaluator.frame import Frame


class ForcedBreak(UnsupportedInstruction):
    """The break that a test asked for."""

    code = "BC099"
    fix = "It is there to be tested."


Rule = Callable[[int, int], bool]
"""rule(capture, count): whether a capture ends before an instruction; both are counted from 0.

Instructions are those of the program that the captured frame executes, in the order of their execution.
"""


def once(count: int) -> Rule:
    """Break the first capture alone."""
    return lambda capture, now: capture == 0 and now == count


def each(count: int) -> Rule:
    """Break every capture after `count` instructions."""
    return lambda capture, now: now == count


@dataclass
class Forced:
    """How many breaks were forced."""

    breaks: int = 0
    _trail: InstructionTrace | None = None
    _capture: int = -1
    _count: int = -1
    _segments: dict[CodeType, Segment] = field(default_factory=dict)

    def _is_own(self, frame: Frame, pc: int) -> bool:
        """Whether an instruction is the program's: neither at the head of a frame nor a part of another's stand-in."""
        segment = self._segments.get(frame.function.code)
        if segment is None:
            return pc >= body_start(frame.program)
        index = segment.indices[pc]
        return index is not None and segment.indices[pc - 1] != index

    def is_due(self, rule: Rule, trace: InstructionTrace, frame: Frame) -> bool:
        """Whether the instruction that `trace` noted last is to break."""
        if trace is not self._trail:
            self._trail, self._capture, self._count = trace, self._capture + 1, -1
        if not self._is_own(frame, frame.pc):
            return False
        self._count += 1
        return rule(self._capture, self._count)


@contextlib.contextmanager
def forced_breaks(rule: Rule) -> Iterator[Forced]:
    """End captures where `rule` says, for a while."""
    forced = Forced()
    reaches_limit, segment = InstructionTrace.reaches_limit, Resumption._segment

    def reaches_limit_or_breaks(trace: InstructionTrace, frame: Frame) -> bool:
        if reaches_limit(trace, frame):
            return True
        if trace.limit is None and forced.is_due(rule, trace, frame):
            forced.breaks += 1
            raise ForcedBreak(f"instruction {frame.program.instructions[frame.pc].opname}")
        return False

    def noted_segment(resumption: Resumption, point: Point) -> Segment:
        made = segment(resumption, point)
        forced._segments[made.code] = made
        return made

    with (
        patch.object(InstructionTrace, "reaches_limit", reaches_limit_or_breaks),
        patch.object(Resumption, "_segment", noted_segment),
    ):
        yield forced
