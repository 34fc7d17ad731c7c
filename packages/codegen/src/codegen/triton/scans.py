"""Scans in a loop kernel: along the inner direction of a tile, and from each tile of a loop on to the next.

Logarithms of sums of exponentials are computed at the end of a scan of two values, the greatest exponent so far and the
sum of exp(x - greatest): one exponential each time two are combined.

In steps, each lane of a tile has a few points that follow each other, and goes along them point by point; what the
lanes before it come to is found once for all of these. What they load comes before what they store, behind which
nothing would be loaded early.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from typing import Protocol

from codegen.triton.expressions import TYPES
from codegen.triton.statements import StatementEmitter
from stagewire import literals
from stagewire.loop import Load, Scan, ScanKind, Statement
from stagewire.statements import makers, used_values
from stagewire.types import DType

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


class Chain(Protocol):
    """How programs go on from each other: see `lookback_scan.py`."""

    def publish(self, scan: Scan, values: list[str], flag: int) -> Iterator[str]: ...

    def look_back(self, scan: Scan, names: list[str]) -> Iterator[str]: ...


Names = tuple[dict[str, str], dict[str, frozenset[str]]]
"""What values are called at one point, and which of "x" and "r" they vary along."""


@dataclass(kw_only=True)
class ScanEmitter(StatementEmitter):
    """carries: in a loop of tiles, by scan, the names of what the tiles before came to. chain: where tiles are parts of
    rows, each of a program's own."""

    carries: dict[str, tuple[str, ...]] = field(default_factory=dict)
    chain: Chain | None = None

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
        if self.chain is not None:
            self.scan_part(self.chain, statement, names, values)
            return
        self.put(f"{', '.join(names)} = {ALONG[statement.scan].format(', '.join(values))}")
        if statement.result in self.carries:
            carries = self.carries[statement.result]
            self.put(f"{', '.join(names)} = {COMBINE[statement.scan].format(*carries, *names)}")
            for carry, name in zip(carries, names, strict=True):
                last = f"tl.where(tl.arange(0, RBLOCK)[None, :] == RBLOCK - 1, {name}, 0)"
                self.put(f"{carry} = tl.sum({last}, 1)[:, None].to({TYPES[working(statement)]})")
        self.define_scan(statement, names)

    def scan_part(self, chain: Chain, scan: Scan, names: list[str], values: list[str]) -> None:
        """The scan of a part, which goes on from what the parts before it come to."""
        fold, combine = FOLD[scan.scan], COMBINE[scan.scan]
        alone, before, after = ([f"{name}{end}" for name in names] for end in ("a", "b", "c"))
        self.put(f"{', '.join(names)} = {', '.join(values)}")
        for axis, operands in ((1, names), (0, alone)):
            together = operands[0] if len(operands) == 1 else f"({', '.join(operands)})"
            self.put(f"{', '.join(alone)} = tl.reduce({together}, {axis}, {fold})")
        for line in chain.publish(scan, alone, 1):
            self.put(line)
        self.put(f"{', '.join(names)} = {ALONG[scan.scan].format(', '.join(names))}")
        for line in chain.look_back(scan, before):
            self.put(line)
        self.put(f"{', '.join(after)} = {combine.format(*before, *alone)}")
        for line in chain.publish(scan, after, 2):
            self.put(line)
        self.put(f"{', '.join(names)} = {combine.format(*before, *names)}")
        self.define_scan(scan, names)

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
