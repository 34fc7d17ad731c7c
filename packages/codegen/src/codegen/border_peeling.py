"""Border peeling: rows of a pointwise kernel cut where positions are clamped; between, they are the axis.

    y[i] = x[min(max(i - 1, 0), n - 1)]     becomes     y[i] = x[i - 1] for i in 1..n + 1;  what it was, for the rest

Reflections and replications read like this. With clamps the lanes gather; without, they load what lies side by side.
(Masks stay: lanes load under them as quickly, and rows that they are cut from fill the lanes.) Sizes may be symbols.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from stagewire.expr import Dim, greatest, least
from stagewire.graph import Ref
from stagewire.index import coefficient, inline, values_of
from stagewire.loop import Axis, AxisAtom, Compute, Index, IndexValue, Kernel, Load, Operand, Statement, Term
from stagewire.statements import map_indices


class Line(NamedTuple):
    """`start` + `step` * axis."""

    start: Dim
    step: int

    def minus(self, other: Line) -> Line:
        return Line(self.start - other.start, self.step - other.step)

    def index(self, axis: str) -> Index:
        return Index(self.start, (Term(self.step, AxisAtom(axis)),) if self.step else ())


class Interior(NamedTuple):
    """The points from `first` to `last` of an axis, and the statements of these points."""

    first: Dim
    last: Dim
    statements: tuple[Statement, ...]

    @property
    def length(self) -> Dim:
        return self.last - self.first


def interior(kernel: Kernel, axis: Axis) -> Interior | None:
    """Of the one section of a pointwise kernel; None where there is none, or where nothing is gained."""
    statements = kernel.sections[0].statements
    reader = _Reader(axis.name, statements)
    wanted = reader.wanted(statements)
    conditions = [one for name in wanted for one in reader.needs.get(name, ())]
    if not conditions:
        return None
    first, last = _range(conditions, axis.size)
    made = tuple(reader.rewritten(statement, wanted) for statement in statements)
    steps = [coefficient(s.index, axis.name) for s in made if isinstance(s, Load)]
    if not all(step in (-1, 0, 1) for step in steps):  # such rows gain little, and short ones lose
        return None
    return Interior(first, last, made)


def _range(conditions: Sequence[Line], size: Dim) -> tuple[Dim, Dim]:
    """(first, last): where all lines are at least 0."""
    first: Dim = 0
    last = size
    for start, step in conditions:
        if step > 0:
            first = greatest(first, -(start // step))
        else:
            last = least(last, start // -step + 1)
    first = least(first, size)
    return first, greatest(first, last)


class _Reader:
    """What the integers of a section are along one axis, where nothing is clamped.

    lines: values that are lines then. needs: the lines that have to be at least 0 for it, by value.
    """

    def __init__(self, axis: str, statements: Sequence[Statement]) -> None:
        self.axis = axis
        self.lines: dict[str, Line] = {}
        self.needs: dict[str, tuple[Line, ...]] = {}
        self._operands: dict[str, tuple[Operand, ...]] = {}
        for statement in statements:
            self._read(statement)

    def _read(self, statement: Statement) -> None:
        match statement:
            case IndexValue(result, index, "int64"):
                step = coefficient(index, self.axis)
                if isinstance(step, int) and all(term.atom == AxisAtom(self.axis) for term in index.terms):
                    self.lines[result] = Line(index.constant, step)
            case Compute(result, op, operands, "int64"):
                lines = [self._line(operand) for operand in operands]
                if op in _MEANINGS and None not in lines:
                    self._operands[result] = operands
                    self._compute(result, op, lines)  # type: ignore[arg-type]

    def _line(self, operand: Operand) -> Line | None:
        if isinstance(operand, Ref):
            return self.lines.get(operand.name)
        return Line(operand, 0) if type(operand) is int else None

    def _compute(self, result: str, op: str, lines: list[Line]) -> None:
        made, needs = _MEANINGS[op](*lines)
        if any(not one.step for one in needs):  # what does not change along the axis stays as it is
            return
        self.needs[result] = tuple(needs)
        self.lines[result] = made

    def wanted(self, statements: Sequence[Statement]) -> dict[str, None]:
        """Values that positions of loads depend on."""
        open_ = [name for s in statements if isinstance(s, Load) for name in values_of(s.index)]
        found: dict[str, None] = {}
        while open_:
            name = open_.pop()
            if name not in found:
                found[name] = None
                open_ += [one.name for one in self._operands.get(name, ()) if isinstance(one, Ref)]
        return found

    def rewritten(self, statement: Statement, wanted: Container[str]) -> Statement:
        """With lines in the place of clamped values."""
        match statement:
            case Compute(result, _, _, "int64") if result in self.lines and result in wanted:
                return IndexValue(result, self.lines[result].index(self.axis), "int64")
            case Load():
                meaning = {name: line.index(self.axis) for name, line in self.lines.items()}
                return map_indices(statement, lambda index: inline(index, meaning))
        return statement


def _larger(a: Line, b: Line) -> tuple[Line, list[Line]]:
    moving, other = (a, b) if a.step else (b, a)
    return moving, [moving.minus(other)] if moving.step else [Line(0, 0)]


def _smaller(a: Line, b: Line) -> tuple[Line, list[Line]]:
    moving, other = (a, b) if a.step else (b, a)
    return moving, [other.minus(moving)] if moving.step else [Line(0, 0)]


def _inside(a: Line, size: Line) -> tuple[Line, list[Line]]:
    return a, [a, size.minus(Line(1, 0)).minus(a)]


_MEANINGS = {
    "maximum": _larger,
    "minimum": _smaller,
    "abs": lambda a: (a, [a]),
    "neg": lambda a: (Line(0, 0).minus(a), []),
    "add": lambda a, b: (Line(a.start + b.start, a.step + b.step), []),
    "sub": lambda a, b: (a.minus(b), []),
    "check_index": _inside,
    "wrap_index": _inside,
}
"""(the line that it is, the lines that have to be at least 0 for that), by operation."""
