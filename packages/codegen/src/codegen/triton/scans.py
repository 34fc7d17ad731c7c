"""Scans in a loop kernel: along the inner direction of a tile, and from each tile of a loop on to the next."""

from __future__ import annotations

from dataclasses import dataclass, field

from codegen.triton.expressions import FLOATS, LOW_PRECISION, TYPES, limits
from codegen.triton.statements import StatementEmitter
from stagewire.loop import Scan, ScanKind, Statement

COMBINE: dict[ScanKind, str] = {
    "sum": "{0} + {1}", "prod": "{0} * {1}", "max": "maximum({0}, {1})", "min": "minimum({0}, {1})",
    "logaddexp": "log_add_exp({0}, {1})",
}  # fmt: skip
ALONG: dict[ScanKind, str] = {
    "sum": "tl.cumsum({0}, 1)", "prod": "tl.cumprod({0}, 1)", "max": "tl.associative_scan({0}, 1, maximum)",
    "min": "tl.associative_scan({0}, 1, minimum)", "logaddexp": "tl.associative_scan({0}, 1, log_add_exp)",
}  # fmt: skip


@dataclass(kw_only=True)
class ScanEmitter(StatementEmitter):
    """carries: in a loop of tiles, by scan, the name of what the tiles before came to."""

    carries: dict[str, str] = field(default_factory=dict)

    def begin_scans(self, statements: tuple[Statement, ...]) -> None:
        """What a loop of tiles starts from. Points outside of the loop come last: no point inside sees them."""
        for scan in (s for s in statements if isinstance(s, Scan)):
            carry = self.carries[scan.result] = f"c{len(self.names)}_{len(self.carries)}"
            self.put(f"{carry} = tl.full([XBLOCK, 1], {_neutral(scan)}, {TYPES[_working(scan)]})")

    def scan(self, statement: Scan) -> None:
        dtype = TYPES[_working(statement)]
        operand = self.operand(statement.operand, statement.dtype)
        tile = f"tl.broadcast_to(({operand}).to({dtype}), [XBLOCK, RBLOCK])"
        scanned = ALONG[statement.scan].format(tile)
        carry = self.carries.get(statement.result)
        if carry is not None:
            whole = f"{carry}_whole"
            self.put(f"{whole} = {COMBINE[statement.scan].format(carry, scanned)}")
            last = "tl.arange(0, RBLOCK)[None, :] == RBLOCK - 1"
            self.put(f"{carry} = tl.sum(tl.where({last}, {whole}, 0), 1)[:, None].to({dtype})")
            scanned = whole
        self.define(statement.result, f"({scanned}).to({TYPES[statement.dtype]})", frozenset("xr"))


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
