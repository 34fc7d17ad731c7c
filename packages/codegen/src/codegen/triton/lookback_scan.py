"""Decoupled look-back scans of few long rows: a program scans a part of a row, from what the parts before come to.

A program takes the number of its part from a counter: in whatever order programs start, those of all parts before are
at work, and wait for none behind. It publishes what its part alone comes to, then looks back: over parts that have
published as much, to one that knows what it and all before it come to (Merrill, Garland 2016: decoupled look-back). So
everything is read and written once.

Where they publish is the kernel's own memory: the counter, then words of 64 bits, of which the upper half says what the
lower half is: 0 nothing yet, 1 of a part alone, 2 with all before it. A word is written at once, so that no order of
memory accesses matters. A kernel before it clears this memory: nothing is left from one launch to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from codegen.triton import tuning
from codegen.triton.expressions import TYPES
from codegen.triton.plan import plan
from codegen.triton.scans import COMBINE, FOLD, neutral, working
from stagewire.loop import Axis, AxisAtom, Buffer, Free, Index, Kernel, LoopGraph, Scan, Section, Step, Store, Term
from stagewire.sizes import NO_HINTS, Hints
from stagewire.statements import points_of, select
from stagewire.types import ITEM_SIZE, contiguous


def memory_of(kernel: Kernel) -> str:
    """The name of the buffer in which the programs of a kernel publish."""
    return f"{kernel.name}_published"


def with_lookback(graph: LoopGraph, hints: Hints = NO_HINTS) -> LoopGraph:
    """The graph with the memory of its chained kernels, and with what clears it."""
    devices = {buffer.name: buffer.type.device for buffer in graph.buffers}
    steps: list[Step] = []
    buffers = list(graph.buffers)
    for step in graph.steps:
        tiles = plan(step, hints) if isinstance(step, Kernel) and _scans(step) else None
        if tiles is None or not tiles.chained:
            steps.append(step)
            continue
        kernel, name = tiles.kernel, memory_of(tiles.kernel)
        size = 1 + points_of(kernel.axes) * tiles.parts * sum(map(_words, _scans(kernel)))
        device = next(devices[s.buffer] for s in select(kernel.sections, Store))
        buffers.append(Buffer(name, replace(contiguous("int64", (size,)), device=device), "kernel"))
        clear = Store(name, Index(0, (Term(1, AxisAtom("i")),)), 0)
        steps += [Kernel(f"{kernel.name}_clear", (Axis("i", size),), (Section((), (clear,)),)), step, Free(name)]
    return replace(graph, steps=tuple(steps), buffers=tuple(buffers))


@dataclass(frozen=True)
class Chain:
    """How the programs of a kernel go on from each other, as lines of its text, where `part` of the row `block` is a
    program's own. memory: the pointer to what they publish. rows: how many there are."""

    kernel: Kernel
    memory: str
    rows: str

    def begin(self) -> Iterator[str]:
        """The number of the program's part, and its row."""
        yield f"ticket = tl.atomic_add({self.memory}, 1, sem='relaxed').to(tl.int32)"
        yield f"part = ticket // {self.rows}"
        yield f"block = ticket % {self.rows}"

    def publish(self, scan: Scan, values: list[str], flag: int) -> Iterator[str]:
        """Publish the values of a scan, numbers: of the part alone, or with all before it."""
        for number, bits in enumerate(_halves(scan, values)):
            place = self._place(scan, number, "part")
            yield f"tl.atomic_xchg({place}, ({bits} & 0xFFFFFFFF) | ({flag} << 32), sem='relaxed')"

    def look_back(self, scan: Scan, names: list[str]) -> Iterator[str]:
        """Give `names` what all parts before come to."""
        window = tuning.SM_90.look_back
        dtype, lanes, words = TYPES[working(scan)], f"tl.arange(0, {window})", _words(scan)
        for name, start in zip(names, neutral(scan), strict=True):
            yield f"{name} = tl.full([], {start}, {dtype})"
        yield "back = part - 1"
        yield "while back >= 0:"
        yield f"    at = back - {lanes}"
        for n in range(words):
            place = self._place(scan, n, "tl.maximum(at, 0)")
            yield f"    w{n} = tl.atomic_add({place}, tl.zeros([{window}], tl.int64), at >= 0, sem='relaxed')"
            yield f"    is{n} = tl.where(at >= 0, (w{n} >> 32).to(tl.int32), 2)"
        alike = [f"    is0 = tl.where(is0 == is{n}, is0, 0)" for n in range(1, words)]
        yield from alike
        yield "    if tl.min(is0, 0) > 0:"
        yield f"        nearest = tl.min(tl.where(is0 == 2, {lanes}, {window}), 0)"
        yield f"        wanted = (at >= 0) & ({lanes} <= nearest)"
        found = [f"u{n}" for n in range(len(names))]
        for name, value, start in zip(found, _whole(scan), neutral(scan), strict=True):
            yield f"        {name} = tl.where(wanted, {value}, tl.full([{window}], {start}, {dtype}))"
        together = found[0] if len(found) == 1 else f"({', '.join(found)})"
        yield f"        {', '.join(found)} = tl.reduce({together}, 0, {FOLD[scan.scan]})"
        yield f"        {', '.join(names)} = {COMBINE[scan.scan].format(*names, *found)}"
        yield f"        back = tl.where(nearest == {window}, back - {window}, -1)"

    def _place(self, scan: Scan, number: int, part: str) -> str:
        """Where a word of a part's is."""
        scans = _scans(self.kernel)
        before = sum(map(_words, scans[: scans.index(scan)])) + number
        return f"{self.memory} + (1 + ({part} * {sum(map(_words, scans))} + {before}) * {self.rows} + block)"


def _scans(kernel: Kernel) -> list[Scan]:
    return select(kernel.sections, Scan)


def _is_long(scan: Scan) -> bool:
    """Whether a value takes two words."""
    return ITEM_SIZE[working(scan)] == 8


def _words(scan: Scan) -> int:
    return len(neutral(scan)) * (2 if _is_long(scan) else 1)


def _halves(scan: Scan, values: list[str]) -> list[str]:
    """Values in pieces of 32 bits, which are the lower ones of 64."""
    if not _is_long(scan):
        return [f"({value}).to(tl.int32, bitcast=True).to(tl.int64)" for value in values]
    bits = [f"({value}).to(tl.int64, bitcast=True)" for value in values]
    return [half for one in bits for half in (one, f"({one} >> 32)")]


def _whole(scan: Scan) -> list[str]:
    """The values that the words w0, w1... are pieces of."""
    dtype = TYPES[working(scan)]
    if not _is_long(scan):
        return [f"w{n}.to(tl.int32).to({dtype}, bitcast=True)" for n in range(_words(scan))]
    pairs = range(0, _words(scan), 2)
    return [f"((w{n} & 0xFFFFFFFF) | (w{n + 1} << 32)).to({dtype}, bitcast=True)" for n in pairs]
