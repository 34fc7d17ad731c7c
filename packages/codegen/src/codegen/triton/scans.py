"""Scans in a loop kernel: along the inner direction of a tile, and from each tile of a loop on to the next.

Logarithms of sums of exponentials are computed at the end of a scan of two values, the greatest exponent so far and the
sum of exp(x - greatest): one exponential each time two are combined.

In steps, each lane of a tile has a few points that follow each other, and goes along them point by point; what the
lanes before it come to is found once for all of these. What they load comes before what they store, behind which
nothing would be loaded early.

Few long rows are scanned by decoupled look-back: a program scans a part of a row, from what the parts before come to.
A program takes the number of its part from a counter: in whatever order programs start, those of all parts before are
at work, and wait for none behind. It publishes what its part alone comes to, then looks back: over parts that have
published as much, to one that knows what it and all before it come to (Merrill, Garland 2016: decoupled look-back). So
everything is read and written once.

Where they publish is the kernel's own memory: the counter, then words of 64 bits, of which the upper half says what the
lower half is: 0 nothing yet, 1 of a part alone, 2 with all before it. A word is written at once, so that no order of
memory accesses matters. A kernel before it clears this memory: nothing is left from one launch to another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from math import inf

from codegen.triton import tuning
from codegen.triton.expressions import TYPES
from codegen.triton.statements import StatementEmitter
from stagewire import literals
from stagewire.loop import Kernel, Load, Scan, ScanKind, Statement
from stagewire.statements import makers, select, used_values
from stagewire.types import ITEM_SIZE, DType

COMBINE: dict[ScanKind, str] = {
    "sum": "{0} + {1}", "prod": "{0} * {1}", "max": "maximum({0}, {1})", "min": "minimum({0}, {1})",
    "logaddexp": "add_exponentials({0}, {1}, {2}, {3})",
}  # fmt: skip
ALONG: dict[ScanKind, str] = {
    "sum": "tl.cumsum({0}, 1)", "prod": "tl.cumprod({0}, 1)", "max": "tl.associative_scan({0}, 1, maximum)",
    "min": "tl.associative_scan({0}, 1, minimum)", "logaddexp": "tl.associative_scan(({0}), 1, add_exponentials)",
}  # fmt: skip
FOLD: dict[ScanKind, str] = {
    "sum": "plus", "prod": "product", "max": "maximum", "min": "minimum", "logaddexp": "add_exponentials"
}  # fmt: skip
"""What combines two, by the name that it has in `prelude.py`; behind "before_", of pairs: see there."""


Names = tuple[dict[str, str], dict[str, frozenset[str]]]
"""What values are called at one point, and which of "x" and "r" they vary along."""


@dataclass(kw_only=True)
class ScanEmitter(StatementEmitter):
    """carries: in a loop of tiles, by scan, the names of what the tiles before came to. rows: how many there are,
    where tiles are parts `part` of a row `block`, each of a program's own."""

    kernel: Kernel
    carries: dict[str, tuple[str, ...]] = field(default_factory=dict)
    rows: str = ""

    def begin_scans(self, statements: tuple[Statement, ...]) -> None:
        """What a loop of tiles starts from. Points outside of the loop come last: no point inside sees them."""
        for scan in (s for s in statements if isinstance(s, Scan)):
            starts = neutral(scan)
            names = tuple(f"c{len(self.names)}_{len(self.carries)}_{i}" for i in range(len(starts)))
            self.carries[scan.result] = names
            for name, start in zip(names, starts, strict=True):
                self.put(f"{name} = tl.full([XBLOCK, 1], {start}, {TYPES[working(scan)]})")

    def scan(self, statement: Scan) -> None:
        names, values = self.scanned(statement)
        if self.rows:
            self.scan_part(statement, names, values)
            return
        self.put(f"{', '.join(names)} = {ALONG[statement.scan].format(', '.join(values))}")
        if statement.result in self.carries:
            carries = self.carries[statement.result]
            self.put(f"{', '.join(names)} = {COMBINE[statement.scan].format(*carries, *names)}")
            for carry, name in zip(carries, names, strict=True):
                last = f"tl.where(tl.arange(0, RBLOCK)[None, :] == RBLOCK - 1, {name}, 0)"
                self.put(f"{carry} = tl.sum({last}, 1)[:, None].to({TYPES[working(statement)]})")
        self.define_scan(statement, names)

    def scan_part(self, scan: Scan, names: list[str], values: list[str]) -> None:
        """The scan of a part, which goes on from what the parts before it come to."""
        fold, combine = FOLD[scan.scan], COMBINE[scan.scan]
        alone, before, after = ([f"{name}{end}" for name in names] for end in ("a", "b", "c"))
        self.put(f"{', '.join(names)} = {', '.join(values)}")
        for axis, operands in ((1, names), (0, alone)):
            together = operands[0] if len(operands) == 1 else f"({', '.join(operands)})"
            self.put(f"{', '.join(alone)} = tl.reduce({together}, {axis}, {fold})")
        self.publish(scan, alone, 1)
        self.put(f"{', '.join(names)} = {ALONG[scan.scan].format(', '.join(names))}")
        self.look_back(scan, before)
        self.put(f"{', '.join(after)} = {combine.format(*before, *alone)}")
        self.publish(scan, after, 2)
        self.put(f"{', '.join(names)} = {combine.format(*before, *names)}")
        self.define_scan(scan, names)

    def begin_part(self, rows: str) -> str:
        """The part of a row that a program scans; the number of the row, of which there are so many."""
        self.rows = rows
        self.put(f"ticket = tl.atomic_add({self.pointer[memory_of(self.kernel)]}, 1, sem='relaxed').to(tl.int32)")
        self.put(f"part = ticket // {rows}")
        self.put(f"block = ticket % {rows}")
        return self.widened("block")

    def publish(self, scan: Scan, values: list[str], flag: int) -> None:
        """Publish the values of a scan, numbers: of the part alone, or with all before it."""
        for number, bits in enumerate(_halves(scan, values)):
            place = self.published(scan, number, "part")
            self.put(f"tl.atomic_xchg({place}, ({bits} & 0xFFFFFFFF) | ({flag} << 32), sem='relaxed')")

    def look_back(self, scan: Scan, names: list[str]) -> None:
        """Give `names` what all parts before come to."""
        window = tuning.SM_90.look_back
        dtype, lanes, words = TYPES[working(scan)], f"tl.arange(0, {window})", words_of(scan)
        for name, start in zip(names, neutral(scan), strict=True):
            self.put(f"{name} = tl.full([], {start}, {dtype})")
        self.put("back = part - 1")
        self.put("while back >= 0:")
        self.put(f"    at = back - {lanes}")
        for n in range(words):
            place = self.published(scan, n, "tl.maximum(at, 0)")
            self.put(f"    w{n} = tl.atomic_add({place}, tl.zeros([{window}], tl.int64), at >= 0, sem='relaxed')")
            self.put(f"    is{n} = tl.where(at >= 0, (w{n} >> 32).to(tl.int32), 2)")
        for n in range(1, words):
            self.put(f"    is0 = tl.where(is0 == is{n}, is0, 0)")
        self.put("    if tl.min(is0, 0) > 0:")
        self.put(f"        nearest = tl.min(tl.where(is0 == 2, {lanes}, {window}), 0)")
        self.put(f"        wanted = (at >= 0) & ({lanes} <= nearest)")
        found = [f"u{n}" for n in range(len(names))]
        for name, value, start in zip(found, _whole(scan), neutral(scan), strict=True):
            self.put(f"        {name} = tl.where(wanted, {value}, tl.full([{window}], {start}, {dtype}))")
        together = found[0] if len(found) == 1 else f"({', '.join(found)})"
        self.put(f"        {', '.join(found)} = tl.reduce({together}, 0, {FOLD[scan.scan]})")
        self.put(f"        {', '.join(names)} = {COMBINE[scan.scan].format(*names, *found)}")
        self.put(f"        back = tl.where(nearest == {window}, back - {window}, -1)")

    def published(self, scan: Scan, number: int, part: str) -> str:
        """Where a word of a part's is."""
        scans = select(self.kernel.sections, Scan)
        before = sum(map(words_of, scans[: scans.index(scan)])) + number
        words = sum(map(words_of, scans))
        return f"{self.pointer[memory_of(self.kernel)]} + (1 + ({part} * {words} + {before}) * {self.rows} + block)"

    def scan_in_steps(self, scan: Scan, points: Iterable[Names]) -> None:
        """The scan at those points of each lane that follow each other, of which each has names of its own."""
        points, at, combine = list(points), list[list[str]](), COMBINE[scan.scan]
        for step, (self.names, self.spread) in enumerate(points):
            self.suffix = f"_{step}"
            names, values = self.scanned(scan)
            self.put(f"{', '.join(names)} = {combine.format(*at[-1], *values) if at else ', '.join(values)}")
            at.append(names)
        dtype, fold, last = TYPES[working(scan)], FOLD[scan.scan], ", ".join(at[-1])
        carries, before = self.carries[scan.result], [f"{name}b" for name in at[-1]]
        rest, all_lanes = ", ".join("_" for _ in before), [f"{name}a" for name in at[-1]]
        starts = ", ".join(f"tl.full([XBLOCK, RBLOCK], {start}, {dtype})" for start in neutral(scan))
        self.put(f"{', '.join(before)}, {rest} = tl.associative_scan(({starts}, {last}), 1, before_{fold})")
        self.put(f"{', '.join(before)} = {combine.format(*carries, *before)}")
        reduced = f"tl.reduce({last if len(before) == 1 else f'({last})'}, 1, {fold})"
        self.put(f"{', '.join(all_lanes)} = {reduced}")
        wide = [f"{name}[:, None]" for name in all_lanes]
        self.put(f"{', '.join(carries)} = {combine.format(*carries, *wide)}")
        for step, (self.names, self.spread) in enumerate(points):
            self.suffix = f"_{step}"
            self.put(f"{', '.join(at[step])} = {combine.format(*before, *at[step])}")
            self.define_scan(scan, at[step])

    def scanned(self, scan: Scan) -> tuple[list[str], list[str]]:
        """Names for what a scan keeps at each point, and what that is of one point alone."""
        dtype = TYPES[working(scan)]
        operand = self.operand(scan.operand, scan.dtype)
        values = [f"tl.broadcast_to(({operand}).to({dtype}), [XBLOCK, RBLOCK])"]
        if scan.scan == "logaddexp":
            values.append(f"tl.full([XBLOCK, RBLOCK], 1, {dtype})")
        return [f"s{len(self.names)}_{i}{self.suffix}" for i in range(len(values))], values

    def define_scan(self, scan: Scan, names: list[str]) -> None:
        """The result, of what is kept."""
        found = f"{names[0]} + logarithm({names[1]})" if scan.scan == "logaddexp" else names[0]
        self.define(scan.result, f"({found}).to({TYPES[scan.dtype]})", frozenset("xr"))


def parted(statements: tuple[Statement, ...]) -> list[tuple[Statement, ...]] | None:
    """The statements in parts to be written one after the other: those that loads need, these included; then the rest,
    each scan being a part of its own. None where a load needs what a scan gives."""
    loads = [s for s in statements if isinstance(s, Load)]
    chain = makers(statements, {name for load in loads for name in used_values(load)})
    if any(isinstance(s, Scan) for s in chain):
        return None
    needed = {id(s) for s in (*loads, *chain)}
    rest = groupby((s for s in statements if id(s) not in needed), lambda s: id(s) if isinstance(s, Scan) else 0)
    return [tuple(s for s in statements if id(s) in needed), *(tuple(part) for _, part in rest)]


def working(scan: Scan) -> DType:
    """The dtype of accumulation: Triton adds up no integers narrower than 32 bits."""
    narrow = {"int8": "int32", "int16": "int32", "uint8": "uint32", "uint16": "uint32"}
    return narrow.get(scan.dtype, literals.wider(scan.dtype))


def neutral(scan: Scan) -> tuple[str, ...]:
    """What changes nothing, of all that is kept."""
    return ("float('-inf')", "0") if scan.scan == "logaddexp" else (identity(scan.scan, working(scan)),)


def identity(kind: str, dtype: str) -> str:
    """The text of what a reduction or a scan of a kind starts from."""
    value = literals.number(literals.neutral(kind, dtype))
    return f"float('{value}')" if abs(value) == inf else str(int(value))


# ---- decoupled look-back


def memory_of(kernel: Kernel) -> str:
    """The name of the buffer in which the programs of a kernel publish."""
    return f"{kernel.name}_published"


def _is_long(scan: Scan) -> bool:
    """Whether a value takes two words."""
    return ITEM_SIZE[working(scan)] == 8


def words_of(scan: Scan) -> int:
    """How many words a value of a scan takes where programs publish it."""
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
        return [f"w{n}.to(tl.int32).to({dtype}, bitcast=True)" for n in range(words_of(scan))]
    pairs = range(0, words_of(scan), 2)
    return [f"((w{n} & 0xFFFFFFFF) | (w{n + 1} << 32)).to({dtype}, bitcast=True)" for n in pairs]
