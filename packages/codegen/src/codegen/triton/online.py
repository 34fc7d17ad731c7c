"""Softmax in one loop less: the greatest value of a row and the sum of exp(value - greatest), found at once.

Where two loops over the same values make a maximum m and then a sum of exp(value - m), one loop can keep both: whatever
exceeds the maximum so far scales the sum (Milakov, Gimelshein 2018). Each lane of a tile does so for itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from stagewire.graph import Ref
from stagewire.loop import (
    AxisAtom,
    Compute,
    FloorDivAtom,
    Index,
    IndexValue,
    Kernel,
    Load,
    ModAtom,
    Operand,
    Reduce,
    Scan,
    Section,
    Statement,
    Store,
    ValueAtom,
)
from stagewire.statements import select

WIDE = ("float32", "float64")


def paired_sections(kernel: Kernel) -> dict[int, int]:
    """By the number of a section that makes a sum of exp(value - m), that of the earlier one that makes m."""
    found: dict[int, int] = {}
    for number, section in enumerate(kernel.sections):
        moved = _moved_exponential(section)
        if moved is None:
            continue
        value, top = moved
        for before in range(number - 1, -1, -1):
            between = kernel.sections[before + 1 : number]
            if any(one.axes for one in between):
                break
            if before not in found.values() and _makes(kernel.sections[before], top, section, value):
                if not _stored((kernel.sections[before], *between)) & _loaded(section):
                    found[number] = before
                break
    return found


def sum_of(section: Section) -> Reduce:
    """The only sum of a section that is paired."""
    return next(s for s in section.statements if isinstance(s, Reduce))


def maximum_for(section: Section, exponentials: Section) -> Reduce:
    """The maximum in a section that is paired with one of exponentials."""
    moved = _moved_exponential(exponentials)
    assert moved is not None
    return next(s for s in section.statements if isinstance(s, Reduce) and s.results == (moved[1],))


def _moved_exponential(section: Section) -> tuple[Operand, str] | None:
    """(value, m) where the section does nothing but a sum of exp(value - m), m being made elsewhere."""
    ends = [s for s in section.statements if isinstance(s, Reduce | Store | Scan)]
    if not section.axes or len(ends) != 1 or not isinstance(ends[0], Reduce) or ends[0].reduction != "sum":
        return None
    made = _made(section)
    exponential = _compute(made, ends[0].operand, "exp")
    moved = _compute(made, exponential.operands[0], "sub") if exponential is not None else None
    if moved is None or moved.dtype not in WIDE or ends[0].dtype != moved.dtype:
        return None
    value, top = moved.operands
    return (value, top.name) if isinstance(top, Ref) and top.name not in made else None


def _makes(section: Section, top: str, later: Section, value: Operand) -> bool:
    """Whether a section makes `top` as the maximum of what is `value` in a later one."""
    if [axis.size for axis in section.axes] != [axis.size for axis in later.axes]:
        return False
    for statement in section.statements:
        if isinstance(statement, Reduce) and statement.results == (top,) and statement.reduction == "max":
            known: dict[object, int] = {}
            here, there = Terms(section, known), Terms(later, known)
            return statement.dtype in WIDE and here.of(statement.operand) == there.of(value)
    return False


def _made(section: Section) -> dict[str, Statement]:
    return {s.result: s for s in section.statements if isinstance(s, Load | Compute | IndexValue | Scan)}


def _compute(made: Mapping[str, Statement], operand: Operand, op: str) -> Compute | None:
    found = made.get(operand.name) if isinstance(operand, Ref) else None
    return found if isinstance(found, Compute) and found.op == op else None


def _stored(sections: tuple[Section, ...]) -> set[str]:
    return {s.buffer for s in select(sections, Store)}


def _loaded(section: Section) -> set[str]:
    return {s.buffer for s in section.statements if isinstance(s, Load)}


class Terms:
    """The values of a section as numbers of terms, which do not depend on how they and its axes are called.

    known: the numbers of the terms met so far, in whatever sections.
    """

    def __init__(self, section: Section, known: dict[object, int]) -> None:
        self.made = _made(section)
        self.axes = {axis.name: place for place, axis in enumerate(section.axes)}
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
        match self.made.get(name):
            case Load(_, buffer, index, dtype, mask, other):
                return "load", buffer, self.index(index), dtype, self.of(mask), self.of(other)
            case Compute(_, op, operands, dtype):
                return op, dtype, *map(self.of, operands)
            case IndexValue(_, index, dtype):
                return "index", self.index(index), dtype
            case None:
                return "outer", name
            case _:
                return "own", id(self), name

    def index(self, index: Index) -> object:
        return index.constant, frozenset((term.coefficient, self.atom(term.atom)) for term in index.terms)

    def atom(self, atom: object) -> object:
        match atom:
            case AxisAtom(name):
                return "axis", self.axes.get(name, name)
            case ValueAtom(name):
                return "value", self.of(Ref(name))
            case FloorDivAtom(numerator, divisor):
                return "div", self.index(numerator), divisor
            case ModAtom(numerator, divisor):
                return "mod", self.index(numerator), divisor
        return atom
