"""Where the captures of an engine's code objects broke, and where a frame that breaks can be left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType

from bytecap.breaks.points import Resumption, Segment
from bytecap.bytecode.decode import InstructionTrace
from bytecap.errors import CannotRebuild


@dataclass(frozen=True)
class Break:
    """Where a capture is to end before its frame does.

    count: how many instructions the frame executes in the capture. resumption: of the frame's code, or of the code
    that it is a segment of.
    """

    count: int
    resumption: Resumption
    segment: Segment | None = None

    def index_of(self, pc: int) -> int:
        """The instruction of the resumption's code that the frame's instruction `pc` is."""
        index = (self.segment or self.resumption).indices[pc]
        if index is None:
            raise CannotRebuild("a segment that broke before its first instruction")
        return index


class Breaks:
    """The resumptions of all code objects of an engine.

    on_driver: is told of every driver's code, which is never captured.
    """

    def __init__(self, on_driver: Callable[[CodeType], None]) -> None:
        self._on_driver = on_driver
        self._drivers: set[CodeType] = set()
        self._resumptions: dict[CodeType, Resumption] = {}
        self._segments: dict[CodeType, tuple[Resumption, Segment]] = {}

    def is_driver(self, code: CodeType) -> bool:
        """Whether the code runs the instructions that broke."""
        return code in self._drivers

    def is_segment(self, code: CodeType) -> bool:
        """Whether the code starts behind a break."""
        return code in self._segments

    def parts_of(self, code: CodeType) -> list[CodeType]:
        """The code and every segment of its function."""
        found = self._segments.get(code)
        resumption = self._resumptions.get(code) if found is None else found[0]
        segments = () if resumption is None else resumption.plan.segments.values()
        return [code, *(segment.code for segment in segments)]

    def places(self, code: CodeType, trace: InstructionTrace) -> Iterator[Break]:
        """A frame of `code` cannot be captured past the end of `trace`: where it can be left, the best place first."""
        resumption, segment = self._part(code)
        origins = (segment or resumption).indices
        last = origins[trace.indices[-1]] if trace.indices else None
        if last is None or not resumption.is_possible:
            return
        resumption.add_break(last)
        self._know(resumption)
        # It cannot be left among the instructions that only set the frame up.
        for count in trace.stops(sum(origins[pc] is None for pc in trace.indices)):
            index = origins[trace.indices[count]]
            if index is not None and resumption.can_enter(index):
                yield Break(count, resumption, segment)

    def add_graphless(self, code: CodeType) -> None:
        """A capture of `code` broke without a graph."""
        if code in self._segments:
            resumption, segment = self._segments[code]
            resumption.add_graphless(segment)
            self._know(resumption)

    def _know(self, resumption: Resumption) -> None:
        for added in resumption.plan.segments.values():
            self._segments.setdefault(added.code, (resumption, added))

    def _part(self, code: CodeType) -> tuple[Resumption, Segment | None]:
        """The resumption that a code object belongs to, and the segment that it is."""
        if code in self._segments:
            return self._segments[code]
        if code not in self._resumptions:
            self._resumptions[code] = Resumption(code, self._adopt_driver)
        return self._resumptions[code], None

    def _adopt_driver(self, code: CodeType) -> None:
        self._drivers.add(code)
        self._on_driver(code)
