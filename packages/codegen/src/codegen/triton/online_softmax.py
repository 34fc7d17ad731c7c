"""Online softmax: the greatest value of a row and the sum of exp(value - greatest), found in one loop.

Where two loops over the same values make a maximum m and then a sum of exp(value - m), one loop can keep both: whatever
exceeds the maximum so far scales the sum (Milakov, Gimelshein 2018). Each lane of a tile does so for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stagewire import loop
from stagewire.graph import Ref
from stagewire.statements import map_indices, points_of, rename, results, select, used_values

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
