"""The kernels of FlexAttention.

    forward   for a tile of queries: over the keys' tiles, weights by the largest score so far (online softmax)
    queries   for a tile of queries: their gradient, over the keys' tiles        weights by the log-sum-exp
    keys      for a tile of keys: gradients of keys and values, over all heads that share them, and the queries' tiles

Of few queries (decoding) there are too few tiles for a GPU: each of some programs goes through a part of the keys, and
another kernel brings together what they come to.

    part      the forward, of a part of the keys: weighted sums, their weights' sum, the largest score
    joined    for a tile of queries: over the parts

The functions of the program stand where the scores are made, statement by statement, as in any kernel; in blocks that a
mask leaves whole, without the mask. Scores are float32; products of float16 and bfloat16 take their operands so.

Source: Dao, "FlashAttention-2" (2023).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from codegen.flex_attention import SCORES, TANGENT, Attention, Function, row_of_blocks
from codegen.triton import tuning
from codegen.triton.emit import XR, arguments_of, function_text, wide_constant
from codegen.triton.expressions import TYPES
from codegen.triton.plan import MOST_SECOND_PROGRAMS, power_of_two
from codegen.triton.products import Make, Types
from codegen.triton.statements import COMPARISONS, StatementEmitter, compared_of, dtypes_of
from codegen.triton.strength_reduction import Cheaper
from stagewire.expr import Dim, Expr
from stagewire.graph import Ref
from stagewire.index import range_of
from stagewire.loop import Compute, IndexValue, Load, Operand, Statement
from stagewire.program import Allocate, Instruction, KernelInfo, Release
from stagewire.statements import used_values
from stagewire.types import contiguous

LOG2E = 1 / math.log(2.0)
FEW_QUERIES = 16


@dataclass(frozen=True)
class Tile:
    """own: rows that a program has; other: those that it goes through at a time."""

    own: int
    other: int
    warps: int
    stages: int


SMALL_FORWARD, SMALL_BACKWARD = Tile(64, 64, 4, 3), Tile(64, 64, 4, 2)
LARGE_FORWARD, LARGE_BACKWARD = Tile(64, 32, 4, 2), Tile(32, 32, 4, 1)
"""For heads of at most 128 elements in half precision, and for others (`benchmarks/flex_attention.py`)."""


def tile_for(call: Attention, types: Types, kind: str, *, is_short: bool) -> Tile:
    """The tile of a kernel, whose sides divide those of a block."""
    query = types[call.query]
    widest = max(query.shape[3], types[call.value].shape[3])  # type: ignore[type-var]
    is_small = query.dtype != "float32" and widest <= 128  # type: ignore[operator]
    forward, backward = (SMALL_FORWARD, SMALL_BACKWARD) if is_small else (LARGE_FORWARD, LARGE_BACKWARD)
    tile = backward if kind in ("queries", "keys") else forward
    own, other = call.block_size if kind != "keys" else call.block_size[::-1]
    first = FEW_QUERIES if is_short else tile.own
    return Tile(math.gcd(first, own), math.gcd(tile.other, other), tile.warps, tile.stages)


@dataclass
class Writer(StatementEmitter):
    """One kernel. results: what it makes; "" for what nobody uses. scratch, parts: where so many parts leave what they
    come to.

    A tile of scores is [XBLOCK, RBLOCK], of the program's own rows x and of those r that it goes through. rows: the
    direction along which there are queries.
    """

    call: Attention = None  # type: ignore[assignment]
    kind: str = ""
    results: tuple[str, ...] = ()
    tile: Tile = None  # type: ignore[assignment]
    scratch: tuple[str, ...] = ()
    parts: int = 1

    @classmethod
    def of(cls, call: Attention, types: Types, kind: str, scratch: tuple[str, ...], parts: int) -> Writer:
        call = dataclasses.replace(call, functions=tuple([one and _narrowed(one) for one in call.functions]))
        made = {"queries": call.results[:1], "keys": call.results[1:], "part": scratch}
        results = made.get(kind, call.results)
        given = scratch if kind == "joined" else call.operands
        parameters = tuple(dict.fromkeys([*given, *filter(None, results)]))
        tile = tile_for(call, types, kind, is_short=bool(scratch))
        is_open = any(isinstance(size, Expr) for one in parameters for size in (*types[one].shape, *types[one].stride))
        wide = None if is_open else False
        return cls(
            parameters, types, wide=wide, call=call, kind=kind, results=results, tile=tile, scratch=scratch, parts=parts
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        types, call = self.types, self.call
        self.batch, self.heads, self.length, self.depth = types[call.query].shape
        _, self.shared, self.keys, self.width = types[call.value].shape
        self.group, self.dtype = self.heads // self.shared, types[call.query].dtype
        self.rows = "r" if self.kind == "keys" else "x"
        every = [one for one in call.functions if one is not None]
        statements = tuple(s for one in every for s in one.statements)
        self.dtypes, self.compared = dtypes_of(statements), compared_of(statements)
        self.cheaper = Cheaper(() if call.more else statements)  # a score and its gradient share what they are made of

    def kernel(self, name: str) -> tuple[str, KernelInfo, tuple[Expr, ...]]:
        """The text of the function, how it is launched, and the sizes that it takes."""
        {"queries": self.queries, "keys": self.keys_and_values}.get(self.kind, self.forward)()
        count, heads = (self.keys, self.shared) if self.kind == "keys" else (self.length, self.heads)
        constants = (*wide_constant(self.sizes), ("XBLOCK", self.tile.own), ("RBLOCK", self.tile.other))
        names = arguments_of(self.parameters, self.sizes)
        grid = (self.parts if self.kind == "part" else -(-count // self.tile.own), self.batch * heads)
        info = KernelInfo(name, self.parameters, grid, constants, self.tile.warps, self.tile.stages)
        return function_text(name, self.lines, names), info, tuple(self.sizes)

    # ---- the three kernels

    def forward(self) -> None:
        """The whole of it, what a part comes to, or what parts come to."""
        call = self.call
        self.begin()
        self.put("most = tl.full([XBLOCK, 1], -float('inf'), tl.float32)")
        self.put("total = tl.zeros([XBLOCK, 1], tl.float32)")
        self.put(f"mixed = tl.zeros([XBLOCK, {_wide(self.width)}], tl.float32)")
        if self.kind == "joined":
            self.over_parts()
        else:
            self.fixed("q", call.query, "d", self.depth)
            self.over_blocks(self._attend)
        if self.kind == "part":
            sums, level, weight = self.of_part("tl.program_id(0)")
            for place, value in ((sums, "mixed"), (level, "most"), (weight, "total")):
                self.put(f"tl.store({place[0]}, {value}, {place[1]})")
            return
        self.put("total = tl.where(total == 0, 1.0, total)")
        out, logsumexp, largest = self.results
        self.store_tile(out, "mixed / total", "e", self.width)
        self.store_row(logsumexp, "most + tl.log2(total)")
        self.store_row(largest, "most")

    def over_parts(self) -> None:
        """Bring together what the parts of the keys come to."""
        self.put(f"for part in range(0, {self.parts}):")
        self.indent = "        "
        for name, place in zip(("more", "top", "weight"), self.of_part("part"), strict=True):
            other = "-float('inf')" if name == "top" else "0"
            self.put(f"{name} = tl.load({place[0]}, {place[1]}, other={other})")
        self.put("new = tl.maximum(most, top)")
        self.put("level = tl.where(new == -float('inf'), 0.0, new)")
        self.put("less, own = tl.math.exp2(most - level), tl.math.exp2(top - level)")
        self.put("total = total * less + weight * own")
        self.put("mixed = mixed * less + more * own")
        self.put("most = new")
        self.indent = "    "

    def of_part(self, part: str) -> list[tuple[str, str]]:
        """Addresses of the sums, the largest scores and the sums of weights of a part, and their masks."""
        sums, levels = (self.pointer[one] for one in self.scratch)
        heads, length = self.batch * self.heads, self.dim(self.length)
        row = f"(({part} * {self.dim(heads)} + {self.widened('tl.program_id(1)')}) * {length} + x)"
        rows, inside = f"x < {length}", f"(x < {length}) & (e < {self.width})"
        second = self.dim(self.parts * heads * self.length)
        places = f"{sums} + {row} * {self.width} + e", f"{levels} + {row}", f"{levels} + {second} + {row}"
        return list(zip(places, (inside, rows, rows), strict=True))

    def _attend(self, is_masked: bool) -> None:
        self.put(f"k = {self.load_tile(self.call.key, 'r', 'j', self.depth)}")
        self.scores("q, k", is_masked)
        self.put("new = tl.maximum(most, tl.max(s, 1)[:, None])")
        self.put("level = tl.where(new == -float('inf'), 0.0, new)")
        self.put("p = tl.math.exp2(s - level)")
        self.put("less = tl.math.exp2(most - level)")
        self.put("total = total * less + tl.sum(p, 1)[:, None]")
        self.put(f"v = {self.load_tile(self.call.value, 'c', 'e', self.width)}")
        self.put(f"mixed = {self.dot('p', 'v', 'mixed * less')}")
        self.put("most = new")

    def queries(self) -> None:
        call = self.call
        self.begin()
        self.fixed("q", call.query, "d", self.depth)
        self.fixed("o", call.more[0], "e", self.width)
        self.rows_of()
        self.put(f"found = tl.zeros([XBLOCK, {_wide(self.depth)}], tl.float32)")
        self.over_blocks(self._query_gradient)
        self.store_tile(self.results[0], f"found * {self.call.scale!r}", "d", self.depth)

    def _query_gradient(self, is_masked: bool) -> None:
        self.put(f"k = {self.load_tile(self.call.key, 'r', 'j', self.depth)}")
        self.put(f"v = {self.load_tile(self.call.value, 'r', 'l', self.width)}")
        kept = self.scores("q, k", is_masked)
        self.score_gradient("o, v", kept)
        self.put(f"found = {self.dot('ds', 'tl.trans(k)', 'found')}")

    def keys_and_values(self) -> None:
        call = self.call
        self.begin()
        self.fixed("k", call.key, "d", self.depth)
        self.fixed("v", call.value, "e", self.width)
        self.put(f"of_key = tl.zeros([XBLOCK, {_wide(self.depth)}], tl.float32)")
        self.put(f"of_value = tl.zeros([XBLOCK, {_wide(self.width)}], tl.float32)")
        self.put(f"for h in range(g * {self.group}, g * {self.group} + {self.group}):")
        self.indent = "        "
        self.over_blocks(self._key_gradient)
        self.indent = "    "
        of_key, of_value = self.results
        self.store_tile(of_key, f"of_key * {self.call.scale!r}", "d", self.depth)
        self.store_tile(of_value, "of_value", "e", self.width)

    def _key_gradient(self, is_masked: bool) -> None:
        self.put(f"q = {self.load_tile(self.call.query, 'r', 'j', self.depth)}")
        self.put(f"o = {self.load_tile(self.call.more[0], 'r', 'l', self.width)}")
        self.rows_of()
        kept = self.scores("k, q", is_masked)
        self.score_gradient("v, o", kept)
        self.put(f"of_value = {self.dot('p', 'tl.trans(o)', 'of_value')}")
        self.put(f"of_key = {self.dot('ds', 'tl.trans(q)', 'of_key')}")

    # ---- what they are made of

    def begin(self) -> None:
        """Which tile of which head it is. b, h, g: batch, head of the queries, head of the keys."""
        of_keys = self.kind == "keys"
        own, heads, name = (self.keys, self.shared, "g") if of_keys else (self.length, self.heads, "h")
        program = self.widened("tl.program_id(1)")
        self.put(f"b = {program} // {heads}")
        self.put(f"{name} = {program} % {heads}")
        if not of_keys:
            self.put(f"g = h // {self.group}")
        self.put(f"first = {'0' if self.kind == 'part' else self.widened('tl.program_id(0)') + ' * XBLOCK'}")
        self.put("x = first + tl.arange(0, XBLOCK)[:, None]")
        if own % self.tile.own:
            self.put(f"xmask = x < {self.dim(own)}")
        else:
            self.full |= {"x"}
        self.put(f"d = tl.arange(0, {_wide(self.depth)})[None, :]")
        self.put(f"e = tl.arange(0, {_wide(self.width)})[None, :]")
        self.put(f"j = tl.arange(0, {_wide(self.depth)})[:, None]")
        if self.call.more:
            self.put(f"l = tl.arange(0, {_wide(self.width)})[:, None]")
        self.along("x")

    def over_blocks(self, step: Callable[[bool], None]) -> None:
        """Write `step` for every tile of the other side that is to be computed, masked or not."""
        is_masked, blocks, indent = self.call.functions[1] is not None, self.call.blocks, self.indent
        own, other = self.call.block_size if self.kind != "keys" else self.call.block_size[::-1]
        count = self.length if self.kind == "keys" else self.keys
        whole = other if blocks else self.tile.other
        self.full = self.full | {"r"} if count % whole == 0 else self.full - {"r"}
        if not blocks:
            self.turns(self.dim(-(-count // self.tile.other)))
            self.put(f"    start = {self.widened('turn')} * RBLOCK")
            self.tile_of(count, indent)
            step(is_masked)
            self.indent = indent
            return
        at = 2 if self.kind == "keys" else 0
        each = other // self.tile.other
        for number in range(0, len(blocks), 4):
            counts, places = blocks[number + at], blocks[number + at + 1]
            self.put(f"row = first // {own}")
            self.put(f"listed = {self.pointer[places]} + ({row_of_blocks(self.types[places], self.dim)})")
            self.put(
                f"count = tl.load({self.pointer[counts]} + ({row_of_blocks(self.types[counts], self.dim)})) * {each}"
            )
            self.turns("count")
            step_size = self.dim(self.types[places].stride[3])
            turn = f"turn // {each}" if each > 1 else "turn"
            rest = f" + turn % {each} * RBLOCK" if each > 1 else ""
            listed = self.widened(f"tl.load(listed + {turn} * {step_size})")
            self.put(f"    start = {listed} * {other}{rest}")
            self.tile_of(count, indent)
            step(is_masked and number == 0)
            self.indent = indent

    def turns(self, count: str) -> None:
        """The head of the loop over so many tiles, or over those of a part."""
        if self.kind != "part":
            self.put(f"for turn in range(0, {count}):")
            return
        ends = (f"{count} * {part} // {self.parts}" for part in ("tl.program_id(0)", "(tl.program_id(0) + 1)"))
        self.put(f"for turn in range({', '.join(ends)}):")

    def tile_of(self, count: Dim, indent: str) -> None:
        self.indent = indent + "    "
        self.put("r = start + tl.arange(0, RBLOCK)[None, :]")
        if not self.call.more:
            self.put("c = start + tl.arange(0, RBLOCK)[:, None]")
        if "r" not in self.full:
            self.put(f"rmask = r < {self.dim(count)}")
            if not self.call.more:
                self.put(f"cmask = c < {self.dim(count)}")
        self.along("r")

    def along(self, way: str) -> None:
        """The axes of all functions that run along a direction of the tile; along "r" those of the heads, too."""
        for number, function in enumerate(self.call.functions):
            if function is None:
                continue
            part = 1 if way == self.rows else 2
            flat = f"{way}_{'smg'[number]}_"
            self.put(f"{flat} = {way}")
            self.split(flat, function.axes[part], frozenset(way))
            if way == "r":
                flat = f"z_{'smg'[number]}_"
                self.put(f"{flat} = b * {self.heads} + h")
                self.split(flat, function.axes[0], frozenset())

    def scores(self, operands: str, is_masked: bool) -> str:
        """Lines up to `s`, the scores in units of log(2), -inf where there is none; the mask of those, "" for all."""
        first, second = operands.split(", ")
        score_mod, mask_mod = self.call.functions[:2]
        scale = self.call.scale * (1 if score_mod or self.call.more else LOG2E)
        self.put(f"scores = {self.dot(first, second)} * {scale!r}")
        self.put("s = scores")
        if score_mod is not None:
            self.put(f"s = {self.called(score_mod)} * {LOG2E!r}")
        elif self.call.more:
            self.put(f"s = scores * {LOG2E!r}")
        kept = [self.bounds(frozenset("r") if self.kind != "keys" else XR)]
        if not self.call.more and "r" in self.full:
            kept = []
        if is_masked and mask_mod is not None:
            kept.append(f"({self.called(mask_mod)})")
        condition = " & ".join(filter(None, kept))
        if condition:
            self.put(f"kept = {condition}")
            self.put("s = tl.where(kept, s, -float('inf'))")
        return "kept" if condition else ""

    def called(self, function: Function) -> str:
        """What a function makes of the tile `scores`, and of `tangent`."""
        for statement in function.statements:
            if isinstance(statement, Load) and statement.buffer in (SCORES, TANGENT):
                self.names[statement.result], self.spread[statement.result] = statement.buffer, XR
            else:
                self.statements((statement,), XR)
        return self.operand(function.value, "float32")

    def score_gradient(self, operands: str, kept: str) -> None:
        """Lines up to `p`, the weights, and `ds`, the gradients of the scores."""
        first, second = operands.split(", ")
        gradient = self.call.functions[2]
        self.put("p = tl.math.exp2(s - level)")
        self.put(f"tangent = p * ({self.dot(first, second)} - delta)")
        self.put(f"ds = {self.called(gradient) if gradient is not None else 'tangent'}")
        if kept:
            self.put(f"ds = tl.where({kept}, ds, 0.0)")

    def rows_of(self) -> None:
        """Log-sum-exp and delta of the queries: `level` and `delta`."""
        _, logsumexp, delta = self.call.more
        mask = self.bounds(frozenset(self.rows))
        for name, buffer in (("level", logsumexp), ("delta", delta)):
            self.put(f"{name} = tl.load({self.row_place(buffer)}{f', {mask}, other=0' if mask else ''})")
        self.put("level = tl.where(level == -float('inf'), 0.0, level)")

    def dot(self, first: str, second: str, total: str = "") -> str:
        kind = TYPES[self.dtype]
        precision = ', input_precision="ieee"' if self.dtype == "float32" else ""
        first = f"{first}.to({kind})" if first in ("p", "ds") else first
        return f"tl.dot({first}, {second}{f', {total}' if total else ''}{precision})"

    # ---- memory

    def fixed(self, name: str, buffer: str, lanes: str, width: int) -> None:
        """The tile of the program's own rows, row by row."""
        self.put(f"{name} = {self.load_tile(buffer, 'x', lanes, width)}")

    def load_tile(self, buffer: str, way: str, lanes: str, width: int) -> str:
        place, mask = self.place(buffer, way, lanes, width)
        return f"tl.load({place}{f', {mask}, other=0' if mask else ''})"

    def place(self, buffer: str, way: str, lanes: str, width: int) -> tuple[str, str]:
        """Addresses of a tile of an operand, and their mask. way: along its rows, of which there are x, and r, or c for
        these down the tile. lanes: along `width`: d or e, or j or l for these down the tile."""
        call, steps = self.call, [self.dim(step) for step in self.types[buffer].stride]
        of_keys = buffer in (call.key, call.value) or (self.kind == "keys" and buffer in self.results)
        text = f"b * {steps[0]} + {'g' if of_keys else 'h'} * {steps[1]} + {way} * {steps[2]} + {lanes} * {steps[3]}"
        bound = f"{way}mask" if {"c": "r"}.get(way, way) not in self.full else ""
        masks = [bound, f"({lanes} < {width})" if _wide(width) != width else ""]
        return f"{self.pointer[buffer]} + ({text})", " & ".join(filter(None, masks))

    def row_place(self, buffer: str) -> str:
        steps = [self.dim(step) for step in self.types[buffer].stride]
        return f"{self.pointer[buffer]} + (b * {steps[0]} + h * {steps[1]} + {self.rows} * {steps[2]})"

    def store_tile(self, buffer: str, value: str, lanes: str, width: int) -> None:
        if buffer:
            place, mask = self.place(buffer, "x", lanes, width)
            value = f"({value}).to({TYPES[self.types[buffer].dtype]})"
            self.put(f"tl.store({place}, {value}{f', {mask}' if mask else ''})")

    def store_row(self, buffer: str, value: str) -> None:
        if buffer:
            mask = self.bounds(frozenset("x"))
            self.put(f"tl.store({self.row_place(buffer)}, {value}{f', {mask}' if mask else ''})")


def _narrowed(function: Function) -> Function:
    sizes = {axis.name: _largest(axis.size) for part in function.axes for axis in part}
    return dataclasses.replace(function, statements=with_narrow_indices(function.statements, sizes))


def _largest(size: Dim) -> int:
    """What a size may be: of an open one, what a tensor that a GPU holds may have of rows."""
    return size if isinstance(size, int) else _GREATEST


def _wide(width: Dim) -> int:
    assert isinstance(width, int)
    return max(16, power_of_two(width))


# ---- places of elements in 32 bits where a function computes them in 64, as PyTorch's numbers of places are

Interval = tuple[int, int]
_LEAST, _GREATEST = -(2**31), 2**31 - 1

_INTERVALS: dict[str, Callable[[Interval, Interval], Interval]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": lambda a, b: (min(x * y for x in a for y in b), max(x * y for x in a for y in b)),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "wrap_index": lambda a, b: (0, b[1] - 1),
}


def with_narrow_indices(statements: tuple[Statement, ...], sizes: Mapping[str, int]) -> tuple[Statement, ...]:
    """The statements, of which those in 32 bits that may be: what is known to fit, unless something computes on with it
    in 64 bits, or with what is not known. sizes: of the axes."""
    known: dict[str, Interval] = {}
    for statement in statements:
        interval = _interval(statement, known, sizes)
        if interval is not None and interval[0] >= _LEAST and interval[1] <= _GREATEST:
            known[statement.result] = interval  # type: ignore[union-attr]
    narrow = set(known)
    for statement in reversed(statements):
        if not _takes_narrow(statement, narrow, known):
            narrow.difference_update(used_values(statement))
    return tuple(replace(s, dtype="int32") if getattr(s, "result", None) in narrow else s for s in statements)


def _interval(statement: Statement, known: Mapping[str, Interval], sizes: Mapping[str, int]) -> Interval | None:
    """Between which numbers a value is, if that is known."""
    match statement:
        case IndexValue(index=index, dtype="int64"):
            return range_of(index, sizes)
        case Compute(op=op, operands=(first, second), dtype="int64") if op in _INTERVALS:
            a, b = _of(first, known), _of(second, known)
            return None if a is None or b is None else _INTERVALS[op](a, b)
    return None


def _of(operand: Operand, known: Mapping[str, Interval]) -> Interval | None:
    if isinstance(operand, Ref):
        return known.get(operand.name)
    return (operand, operand) if type(operand) is int else None


def _takes_narrow(statement: Statement, narrow: set[str], known: Mapping[str, Interval]) -> bool:
    """Whether a statement means the same of numbers in 32 bits."""
    match statement:
        case Load() | IndexValue():
            return True
        case Compute(op="convert", dtype=dtype):
            return dtype.startswith(("float", "bfloat"))
        case Compute(op=op, operands=operands) if op in COMPARISONS:
            return all(_of(one, known) is not None for one in operands)
        case Compute(result=result):
            return result in narrow
    return False


# ---- what is launched in place of a call


def is_launched(call: Attention, types: Types) -> bool:
    """Whether a grid can have its heads."""
    batch, heads = types[call.query].shape[:2]
    return not isinstance(batch * heads, int) or batch * heads <= MOST_SECOND_PROGRAMS


def stand_in(call: Attention, types: Types, name: str, make: Make) -> list[Instruction]:
    """What computes the call's results. `name` begins the names of what is made."""
    made: list[Instruction] = [Allocate(result, types[result]) for result in call.results if result]
    kinds, scratch, parts = ("queries", "keys") if call.more else ("forward",), (), parts_of(call, types)
    if parts > 1:
        query, width = types[call.query], types[call.value].shape[3]
        shapes = (parts, *query.shape[:3], width), (2, parts, *query.shape[:3])
        scratch = tuple(f"{name}_{what}" for what in ("sums", "levels"))
        made_types = (contiguous("float32", shape, query.device) for shape in shapes)
        types = {**types, **dict(zip(scratch, made_types, strict=True))}
        made += [Allocate(one, types[one]) for one in scratch]
        kinds = ("part", "joined")
    for kind in kinds:
        writer = Writer.of(call, types, kind, scratch, parts)
        if any(writer.results):
            text, info, sizes = writer.kernel(f"{name}_{kind}")
            made.append(make(text, info, types, sizes))
    return [*made, *(Release(one) for one in scratch)]


def parts_of(call: Attention, types: Types) -> int:
    """In how many parts the keys of few queries are gone through."""
    batch, heads, length, _ = types[call.query].shape
    if call.more or not isinstance(length, int) or length > FEW_QUERIES:
        return 1
    tiles, programs = -(-types[call.key].shape[2] // SMALL_FORWARD.other), -(-tuning.SM_90.programs // (batch * heads))
    if not isinstance(programs, int):
        return 1
    return max(1, min(tiles // 2, programs)) if isinstance(tiles, int) else programs
