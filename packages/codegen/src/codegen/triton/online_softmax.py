"""Online softmax: the greatest value of a row and the sum of exp(value - greatest), found in one loop.

Where two loops over the same values make a maximum m and then a sum of exp(value - m), one loop can keep both: whatever
exceeds the maximum so far scales the sum (Milakov, Gimelshein 2018). Each lane of a tile does so for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stagewire import loop
from stagewire.graph import Ref
from stagewire.statements import map_indices, operands, points_of, rename, select, used_values

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
    """tile: elements of a row that are at hand together, in one loop of which no sum is online; None: all of them."""
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
    for number, section in enumerate(kernel.sections):
        moved = _moved_exponential(section)
        if moved is None:
            continue
        value, top, total = moved
        for before in range(number - 1, -1, -1):
            between = kernel.sections[before + 1 : number]
            if any(one.axes for one in between):
                break
            greatest = _maximum(kernel.sections[before], top, section, value)
            if greatest is not None and all(before != one.maximum for one in found):
                stored = {s.buffer for s in select((kernel.sections[before], *between), loop.Store)}
                if stored.isdisjoint(s.buffer for s in select((section,), loop.Load)):
                    found.append(Pair(before, number, greatest, total))
                break
    return found


def _moved_exponential(section: loop.Section) -> tuple[loop.Operand, str, loop.Reduce] | None:
    """(value, m, sum) where the section does nothing but a sum of exp(value - m), m being made elsewhere."""
    ends = [s for s in section.statements if isinstance(s, loop.Reduce | loop.Store | loop.Scan)]
    if not section.axes or len(ends) != 1 or not isinstance(ends[0], loop.Reduce) or ends[0].reduction != "sum":
        return None
    made = _made(section)
    exponential = _compute(made, ends[0].operand, "exp")
    moved = _compute(made, exponential.operands[0], "sub") if exponential is not None else None
    if moved is None or moved.dtype not in WIDE or ends[0].dtype != moved.dtype:
        return None
    value, top = moved.operands
    return (value, top.name, ends[0]) if isinstance(top, Ref) and top.name not in made else None


def _maximum(section: loop.Section, top: str, later: loop.Section, value: loop.Operand) -> loop.Reduce | None:
    """The reduction of a section that makes `top` as the maximum of what is `value` in a later one."""
    one = next((s for s in select((section,), loop.Reduce) if s.results == (top,)), None)
    if one is None or (one.reduction, one.dtype in WIDE) != ("max", True):
        return None
    known: dict[object, int] = {}
    here, there = ValueNumbers(section, known), ValueNumbers(later, known)
    is_same = [axis.size for axis in section.axes] == [axis.size for axis in later.axes]
    return one if is_same and here.of(one.operand) == there.of(value) else None  # type: ignore[no-any-return]


def _made(section: loop.Section) -> dict[str, loop.Statement]:
    return {
        s.result: s for s in section.statements if isinstance(s, loop.Load | loop.Compute | loop.IndexValue | loop.Scan)
    }


def _compute(made: Mapping[str, loop.Statement], operand: loop.Operand, op: str) -> loop.Compute | None:
    found = made.get(operand.name) if isinstance(operand, Ref) else None
    return found if isinstance(found, loop.Compute) and found.op == op else None


class ValueNumbers:
    """Value numbering: what sections compute alike has the same number, whatever values and axes are called.

    known: the numbers of the terms met so far, in whatever sections.
    """

    def __init__(self, section: loop.Section, known: dict[object, int]) -> None:
        self.made = _made(section)
        self.axes = {axis.name: f"axis {place}" for place, axis in enumerate(section.axes)}
        self.known = known
        self.numbers: dict[str, int] = {}

    def of(self, operand: object) -> int:
        if not isinstance(operand, Ref):
            return self.number(("literal", repr(operand)))
        if operand.name not in self.numbers:
            self.numbers[operand.name] = self.number(self.term(operand.name))
        return self.numbers[operand.name]

    def number(self, term: object) -> int:
        return self.known.setdefault(term, len(self.known))

    def term(self, name: str) -> object:
        """The statement that makes a value, under names that say what it is of: the values' are their numbers."""
        statement = self.made.get(name)
        if statement is None:
            return "outer", name
        if isinstance(statement, loop.Scan):
            return "own", id(self), name
        literals = [repr(operand) for operand in operands(statement) if not isinstance(operand, Ref)]
        names = self.axes | {used: f"value {self.of(Ref(used))}" for used in used_values(statement)} | {name: ""}
        return map_indices(rename(statement, names), _in_order), *literals


def _in_order(index: loop.Index) -> loop.Index:
    """The index with its terms in an order of their own, whatever axes were called."""
    return loop.Index(index.constant, tuple(sorted(index.terms, key=repr)))
