"""Reductions in a loop kernel: of one tile along its inner direction, and of a loop of tiles lane by lane first.

sum prod max min any all xor_sum   the value
argmax argmin                      the value, its position
welford                            mean, squared deviations, count
max with a paired sum              the value, the sum of exp(x - value): see `softmax_of`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from codegen.triton.expressions import TYPES
from codegen.triton.scans import ScanEmitter, identity
from stagewire import loop
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.literals import wider
from stagewire.loop import Reduce
from stagewire.statements import map_indices, points_of, rename, results, select, used_values

POSITIONS = "r + tl.zeros([XBLOCK, RBLOCK], tl.int32)"
"""The positions of a tile, in as many bits as indices take."""

X = frozenset("x")
XR = frozenset("xr")


@dataclass(kw_only=True)
class ReductionEmitter(ScanEmitter):
    """paired: by the result of a maximum, the sum of exponentials that its loop makes, too.

    group: how many neighbours of a row a thread has at a time, in the section that is being written. extrema_at: by the
    result of a position, the reductions that give the value there. tile: of a loop that is written out, the number.
    run: of a section whose tiles are within runs of so many points (see `plan.py`); 0 of others. What lies behind the
    end of a run is the same in all tiles, and is left out behind the loop.
    """

    plan: Any
    paired: dict[str, Reduce] = field(default_factory=dict)
    group: int = 1
    extrema_at: dict[str, tuple[Reduce, ...]] = field(default_factory=dict)
    tile: int | None = None
    run: int = 0

    def apart(self, reductions: list[Reduce]) -> list[Reduce]:
        """The reductions but for the greatest (the least) values of which the position is wanted, too."""
        kept = list(reductions)
        for place in (r for r in reductions if r.reduction in ("argmax", "argmin")):
            same = tuple(r for r in kept if r.reduction == place.reduction[3:] and r.operand == place.operand)
            self.extrema_at[place.results[0]] = same
            kept = [r for r in kept if r not in same]
        return kept

    def neutral(self, reduction: Reduce) -> str:
        return identity(reduction.reduction, self.working(reduction))

    def working(self, reduction: Reduce) -> str:
        """The dtype of accumulation."""
        if reduction.reduction in ("argmax", "argmin"):
            operand = reduction.operand
            dtype = self.dtypes[operand.name] if isinstance(operand, Ref) else reduction.dtype
            return "int32" if dtype == "bool" else wider(dtype)
        if reduction.reduction in ("any", "all"):
            return "int32"
        return wider(reduction.dtype)

    def masked(self, reduction: Reduce) -> tuple[str, ...]:
        """The operand over the tile, neutral outside of the loops, in the dtype of accumulation; and its positions,
        which are greater outside of them than inside."""
        dtype = self.working(reduction)
        value = self.operand(reduction.operand, reduction.dtype)
        if reduction.reduction in ("any", "all"):
            value = f"({value} != 0)"
        value = f"tl.broadcast_to(({value}).to({TYPES[dtype]}), [XBLOCK, RBLOCK])"
        tile = self.where_inside(value, f"tl.full([1, 1], {self.neutral(reduction)}, {TYPES[dtype]})")
        return (tile, POSITIONS) if reduction.reduction in ("argmax", "argmin") else (tile,)

    def where_inside(self, value: str, other: str) -> str:
        """A value over the tile, another outside of the loops."""
        mask = self.bounds(X if self.run else XR)
        return f"tl.where({mask}, {value}, {other})" if mask else value

    def within(self, value: str, other: str = "0") -> str:
        """What a loop of tiles comes to, where these all have the same points; another value outside of them."""
        if not self.run or "r" in self.full:
            return value
        return f"tl.where(tl.arange(0, RBLOCK)[None, :] < {self.run}, {value}, {other})"

    def tiles_of(self, count: Dim) -> Dim:
        """How many tiles a loop over so many points has."""
        tile, run = self.plan.inner, self.run
        return -(-run // tile) * (count // run) if run else (count + (tile - 1)) // tile

    def accumulator(self, section: int, number: int, reduction: Reduce) -> tuple[str, ...]:
        """Define the running state of a looped reduction, at its neutral element; positions at those of the first
        tile, the values of which are at least as good."""
        dtype = TYPES[self.working(reduction)]
        starts = [f"tl.full([XBLOCK, RBLOCK], {self.neutral(reduction)}, {dtype})"]
        if reduction.reduction in ("argmax", "argmin"):
            lanes = self.widened("tl.arange(0, RBLOCK)[None, :]")
            starts.append(f"{lanes} + tl.zeros([XBLOCK, RBLOCK], tl.int32)")
        elif reduction.reduction == "welford":
            starts *= 2
        elif reduction.results[0] in self.paired:
            shape = f"[XBLOCK, RBLOCK // {self.group}]"
            starts = [f"tl.full({shape}, float('-inf'), {dtype})", f"tl.zeros({shape}, {dtype})"]
        names = tuple(f"a{section}_{number}_{i}" for i in range(len(starts)))
        for name, start in zip(names, starts, strict=True):
            self.put(f"{name} = {start}")
        return names

    def met(self, reduction: Reduce, count: Dim) -> tuple[str, ...]:
        """How many points each lane of a loop has met, where that is a part of the state."""
        if reduction.reduction != "welford":
            return ()
        if self.run:
            met = f"tl.where(tl.arange(0, RBLOCK)[None, :] < {self.run}, {self.dim(self.tiles_of(count))}, 0)"
        else:
            met = f"(({self.dim(count)} - tl.arange(0, RBLOCK)[None, :] + RBLOCK - 1) // RBLOCK)"
        return (f"{met}.to({TYPES[self.working(reduction)]}) + tl.zeros([XBLOCK, RBLOCK], tl.float32)",)

    def accumulate(self, reduction: Reduce, names: tuple[str, ...]) -> None:
        """Add a tile to the state. A lane meets greater and greater positions, so that it keeps that of an equal."""
        value, *_ = self.masked(reduction)
        match reduction.reduction:
            case "max" if len(names) == 2:
                best, total = names
                self.put(f"tile = tl.reshape({value}, [XBLOCK, RBLOCK // {self.group}, {self.group}])")
                self.put(f"top = maximum({best}, tl.reduce(tile, 2, maximum))")
                self.put("level = tl.where(top == float('-inf'), 0.0, top)  # of nothing but -inf comes nothing")
                self.put(f"old = {total} * exponential({best} - level)")
                self.put(f"{total} = old + tl.sum(exponential(tile - level[:, :, None]), 2)")
                self.put(f"{best} = top")
            case "sum":
                self.put(f"{names[0]} += {value}")
            case "any" | "xor_sum" | "all" | "prod" | "max" | "min":
                self.put(f"{names[0]} = {_COMBINE[reduction.reduction]}({names[0]}, {value})")
            case "argmax" | "argmin":
                best, place = names
                self.put(f"tile = {value}")
                compared = ">=" if reduction.reduction == "argmax" else "<="
                self.put(f"better = ({best} == {best}) & ~({best} {compared} tile)  # a nan is, and stays")
                self.put(f"{best} = tl.where(better, tile, {best})")
                self.put(f"{place} = tl.where(better, {POSITIONS}, {place})")
            case "welford":
                mean, squares = names
                self.put(f"step = {self.where_inside(f'{value} - {mean}', '0.0')}")
                count = f"(tl.zeros([1, 1], {TYPES[self.working(reduction)]}) + (base // RBLOCK + 1))"
                self.put(f"{mean} += step * {f'(1.0 / {count})' if self.tile is None else 1 / (self.tile + 1)}")
                self.put(f"{squares} += step * ({value} - {mean})")

    def moments(self, reduction: Reduce, tiles: list[str], count: str) -> None:
        """Mean, squared deviations and count of rows that are at hand as a whole: two passes, and a correction by what
        the deviations sum up to (Chan, Golub, LeVeque 1983), so that a constant row has no variance."""
        dtype = TYPES[self.working(reduction)]
        mean, off, rest, squares = (f"f{len(self.names)}_{name}" for name in ("mean", "off", "rest", "squares"))
        self.put(f"{mean} = tl.sum({self.within(' + '.join(tiles))}, 1)[:, None] / {count}")
        for number, tile in enumerate(tiles):
            self.put(f"{off} = {self.where_inside(f'{tile} - {mean}', '0')}")
            self.put(f"{rest} {'+' if number else ''}= {off}")
            self.put(f"{squares} {'+' if number else ''}= {off} * {off}")
        self.put(f"{rest} = tl.sum({self.within(rest)}, 1)[:, None] / {count}")
        total = f"tl.sum({self.within(squares)}, 1)[:, None]"
        self.put(f"{squares} = maximum({total} - {rest} * {rest} * {count}, 0.0)")
        moved = f"tl.where({rest} == {rest}, {mean} + {rest}, {mean})"
        kept = moved, squares, f"tl.full([XBLOCK, 1], {count}, {dtype})"
        for result, text in zip(reduction.results, kept, strict=True):
            self.define(result, f"{text}.to({TYPES[reduction.dtype]})", X)

    def fold(self, reduction: Reduce, values: tuple[str, ...]) -> None:
        """Combine a tile along its inner direction into [XBLOCK, 1]."""
        kind, dtype = reduction.reduction, TYPES[reduction.dtype]
        if kind in ("argmax", "argmin", "welford"):
            spare = [f"f{len(self.names)}_{i}" for i in range(len(values))]
            self.put(f"{', '.join(spare)} = tl.reduce(({', '.join(values)}), 1, {_COMBINE[kind]})")
            for value in self.extrema_at.get(reduction.results[0], ()):
                self.define(value.results[0], f"{spare[0]}[:, None].to({TYPES[value.dtype]})", X)
            for result, name in zip(reduction.results, spare if kind == "welford" else spare[1:], strict=True):
                self.define(result, f"{name}[:, None].to({dtype})", X)
            return
        folded = f"tl.sum({values[0]}, 1)" if kind == "sum" else f"tl.reduce({values[0]}, 1, {_COMBINE[kind]})"
        (result,) = reduction.results
        self.define(
            result, f"({folded}[:, None] != 0)" if kind in ("any", "all") else f"{folded}[:, None].to({dtype})", X
        )
        if result in self.paired and len(values) == 2:
            total, scaled = self.paired[result], f"{values[1]} * exponential({values[0]} - {self.names[result]})"
            self.define(total.results[0], f"tl.sum({scaled}, 1)[:, None].to({TYPES[total.dtype]})", X)


_COMBINE = {
    "prod": "product", "max": "maximum", "min": "minimum", "any": "either", "all": "both", "xor_sum": "exclusive",
    "argmax": "larger_first", "argmin": "smaller_first", "welford": "welford",
}  # fmt: skip


WIDE = ("float32", "float64")


class Pair(NamedTuple):
    """maximum, total: the numbers of the sections that make them; and the reductions that do."""

    maximum: int
    total: int
    greatest: loop.Reduce
    sum: loop.Reduce


@dataclass(frozen=True)
class Softmax:
    """What a schedule knows of exponentials in a kernel.

    online: the sums that the loop of the maximum makes
    differences: values less a maximum, whose exponentials need no look at their range
    divisors: sums of exponentials that are divided by; one of the summands is 1, so that the inverse does for all
    """

    online: tuple[Pair, ...]
    differences: frozenset[str]
    divisors: frozenset[str]


def softmax_of(kernel: loop.Kernel, tile: int | None) -> Softmax:
    """Online softmax: where two loops over the same values make a maximum m and then a sum of exp(value - m), one loop
    can keep both: whatever exceeds the maximum so far scales the sum (Milakov, Gimelshein 2018). Each lane of a tile
    does so for itself.

    tile: elements of a row that are at hand together, in one loop of which no sum is online; None: all of them.
    """
    pairs = pairs_of(kernel)
    computed: list[loop.Compute] = select(kernel.sections, loop.Compute)
    tops = {Ref(s.results[0]) for s in select(kernel.sections, loop.Reduce) if s.reduction == "max"}
    divisors = {s.operands[1] for s in computed if s.op == "div"}
    lengths = [points_of(section.axes) for section in kernel.sections]
    return Softmax(
        tuple(p for p in pairs if tile is not None and not (isinstance(n := lengths[p.maximum], int) and n <= tile)),
        frozenset(s.result for s in computed if s.op == "sub" and s.operands[1] in tops),
        frozenset(p.sum.results[0] for p in pairs if p.sum.dtype == "float32" and Ref(p.sum.results[0]) in divisors),
    )


def pairs_of(kernel: loop.Kernel) -> list[Pair]:
    """The sums of exp(value - m) with the earlier maxima m of the same values."""
    found: list[Pair] = []
    maxima: dict[str, tuple[int, loop.Reduce]] = {}
    for number, section in enumerate(kernel.sections):
        value, top, total = _sum_of_exponentials(section) or ("", "", None)
        if total is not None and top in maxima:
            before, greatest = maxima[top]
            first, *between = kernel.sections[before:number]
            stored = {s.buffer for s in select((first, *between), loop.Store)}
            if (
                not any(one.axes for one in between)
                and all(before != one.maximum for one in found)
                and stored.isdisjoint(s.buffer for s in select((section,), loop.Load))
                and _is_same(first, greatest.operand, section, value)
            ):
                found.append(Pair(before, number, greatest, total))
        for one in select((section,), loop.Reduce):
            if one.reduction == "max" and one.dtype in WIDE:
                maxima[one.results[0]] = number, one
    return found


def _sum_of_exponentials(section: loop.Section) -> tuple[str, str, loop.Reduce] | None:
    """(value, m, sum) where the section does nothing but a sum of exp(value - m), m being made elsewhere."""
    ends = [s for s in section.statements if isinstance(s, loop.Reduce | loop.Store | loop.Scan)]
    made = {name: s for s in section.statements for name in results(s)}
    match ends:
        case [loop.Reduce(_, "sum", Ref(power), dtype) as total] if section.axes and dtype in WIDE:
            match made.get(power):
                case loop.Compute(_, "exp", (Ref(moved),)):
                    match made.get(moved):
                        case loop.Compute(_, "sub", (Ref(value), Ref(top)), of) if of == dtype and top not in made:
                            return value, top, total
    return None


def _is_same(section: loop.Section, operand: loop.Operand, later: loop.Section, value: str) -> bool:
    """Whether an operand is, at each point of a section, a value of a later one at its corresponding point."""
    known: dict[str, int] = {}
    here, there = (value_numbers(one, known) for one in (section, later))
    is_same = [axis.size for axis in section.axes] == [axis.size for axis in later.axes]
    return is_same and isinstance(operand, Ref) and here.get(operand.name, operand.name) == there.get(value, value)


def value_numbers(section: loop.Section, known: dict[str, int]) -> dict[str, int]:
    """Value numbering: what sections compute alike has the same number, whatever values and axes are called.

    known: the numbers of the terms met so far, in whatever sections.
    """
    numbers: dict[str, int] = {}
    axes = {axis.name: f"axis {place}" for place, axis in enumerate(section.axes)}
    for statement in section.statements:
        if isinstance(statement, loop.Load | loop.Compute | loop.IndexValue | loop.Scan):
            own = {} if isinstance(statement, loop.Scan) else {statement.result: ""}  # of all points, not of this one
            values = {name: f"value {numbers[name]}" for name in used_values(statement) if name in numbers}
            term = repr(map_indices(rename(statement, axes | values | own), _in_order))  # tells 1 from 1.0
            numbers[statement.result] = known.setdefault(term, len(known))
    return numbers


def _in_order(index: loop.Index) -> loop.Index:
    """The index with its terms in an order of their own, whatever axes were called."""
    return loop.Index(index.constant, tuple(sorted(index.terms, key=repr)))
