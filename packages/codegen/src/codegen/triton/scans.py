"""Scans in a loop kernel: along the inner direction of a tile, and from each tile of a loop on to the next.

Logarithms of sums of exponentials are computed at the end of a scan of two values, the greatest exponent so far and the
sum of exp(x - greatest): one exponential each time two are combined.

In steps, each thread goes along columns of its own, point by point: nothing passes between threads. What a few points
load comes before what they store, behind which nothing would be loaded early.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from codegen.triton.expressions import FLOATS, LOW_PRECISION, TYPES, limits
from codegen.triton.statements import StatementEmitter
from stagewire.graph import Ref
from stagewire.loop import (
    Compute,
    FloorDivAtom,
    Index,
    IndexValue,
    Load,
    ModAtom,
    Scan,
    ScanKind,
    Statement,
    ValueAtom,
)

COMBINE: dict[ScanKind, str] = {
    "sum": "{0} + {1}", "prod": "{0} * {1}", "max": "maximum({0}, {1})", "min": "minimum({0}, {1})",
    "logaddexp": "add_exponentials({0}, {1}, {2}, {3})",
}  # fmt: skip
ALONG: dict[ScanKind, str] = {
    "sum": "tl.cumsum({0}, 1)", "prod": "tl.cumprod({0}, 1)", "max": "tl.associative_scan({0}, 1, maximum)",
    "min": "tl.associative_scan({0}, 1, minimum)", "logaddexp": "tl.associative_scan(({0}), 1, add_exponentials)",
}  # fmt: skip


@dataclass(kw_only=True)
class ScanEmitter(StatementEmitter):
    """carries: in a loop of tiles, by scan, the names of what the tiles before came to. in_steps: whether a tile is one
    point of each column."""

    carries: dict[str, tuple[str, ...]] = field(default_factory=dict)
    in_steps: bool = False

    def begin_scans(self, statements: tuple[Statement, ...]) -> None:
        """What a loop of tiles starts from. Points outside of the loop come last: no point inside sees them."""
        for scan in (s for s in statements if isinstance(s, Scan)):
            starts = [_neutral(scan), "0"] if scan.scan == "logaddexp" else [_neutral(scan)]
            names = tuple(f"c{len(self.names)}_{len(self.carries)}_{i}" for i in range(len(starts)))
            self.carries[scan.result] = names
            for name, start in zip(names, starts, strict=True):
                self.put(f"{name} = tl.full([XBLOCK, 1], {start}, {TYPES[_working(scan)]})")

    def scan(self, statement: Scan) -> None:
        dtype = TYPES[_working(statement)]
        operand = self.operand(statement.operand, statement.dtype)
        values = [f"tl.broadcast_to(({operand}).to({dtype}), [XBLOCK, RBLOCK])"]
        if statement.scan == "logaddexp":
            values.append(f"tl.full([XBLOCK, RBLOCK], 1, {dtype})")
        names = [f"s{len(self.names)}_{i}{self.suffix}" for i in range(len(values))]
        if not self.in_steps:
            self.put(f"{', '.join(names)} = {ALONG[statement.scan].format(', '.join(values))}")
            values = names
        if statement.result in self.carries:
            carries = self.carries[statement.result]
            self.put(f"{', '.join(names)} = {COMBINE[statement.scan].format(*carries, *values)}")
            for carry, name in zip(carries, names, strict=True):
                last = f"tl.where(tl.arange(0, RBLOCK)[None, :] == RBLOCK - 1, {name}, 0)"
                self.put(f"{carry} = {name if self.in_steps else f'tl.sum({last}, 1)[:, None].to({dtype})'}")
        found = f"{names[0]} + tl.log({names[1]})" if statement.scan == "logaddexp" else names[0]
        self.define(statement.result, f"({found}).to({TYPES[statement.dtype]})", frozenset("xr"))


def parted(statements: tuple[Statement, ...]) -> tuple[tuple[Statement, ...], tuple[Statement, ...]] | None:
    """The statements that loads need, these included, and the rest; None where a load needs what a scan gives."""
    needed = {id(s) for s in statements if isinstance(s, Load)}
    used = {name for s in statements if isinstance(s, Load) for name in _used(s)}
    for statement in reversed(statements):
        result = getattr(statement, "result", None)
        if result in used and id(statement) not in needed:
            if isinstance(statement, Scan):
                return None
            needed.add(id(statement))
            used.update(_used(statement))
    return tuple(s for s in statements if id(s) in needed), tuple(s for s in statements if id(s) not in needed)


def _used(statement: Statement) -> set[str]:
    """The values that a load, or what its place and mask are made of, takes."""
    match statement:
        case Load(index=index, mask=mask):
            return {*_values(index), *((mask.name,) if mask is not None else ())}
        case Compute(operands=operands):
            return {operand.name for operand in operands if isinstance(operand, Ref)}
        case IndexValue(index=index):
            return set(_values(index))
    return set()


def _values(index: Index) -> Iterator[str]:
    for atom in (term.atom for term in index.terms):
        match atom:
            case ValueAtom(name):
                yield name
            case FloorDivAtom(numerator, _) | ModAtom(numerator, _):
                yield from _values(numerator)


def _working(scan: Scan) -> str:
    """The dtype of accumulation: Triton adds up no integers narrower than 32 bits."""
    if scan.dtype in LOW_PRECISION:
        return "float32"
    return {"int8": "int32", "int16": "int32", "uint8": "uint32", "uint16": "uint32"}.get(scan.dtype, scan.dtype)


def _neutral(scan: Scan) -> str:
    dtype = _working(scan)
    match scan.scan:
        case "sum":
            return "0"
        case "prod":
            return "1"
        case "max" | "logaddexp":
            return "float('-inf')" if dtype in FLOATS else str(limits(dtype)[0])
        case "min":
            return "float('inf')" if dtype in FLOATS else str(limits(dtype)[1])
