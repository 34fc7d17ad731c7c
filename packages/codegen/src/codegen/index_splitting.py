"""Index-set splitting: pointwise kernels cut where a condition on one axis changes; each piece runs without it.

    y[i] = a[i] if i < 100 else b[i - 100]     becomes     y[i] = a[i] for i in 0..100;  y[100 + i] = b[i] for the rest

Concatenations, padding and slices that are written come as such conditions. With them a loop loads from every source
under a mask, and chooses; without, it is the loop that each source alone would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from codegen.border_peeling import interior
from codegen.cpp.tuning import TUNED
from stagewire.expr import Dim, greatest, least
from stagewire.graph import Ref
from stagewire.index import coefficient, inline
from stagewire.loop import (
    Axis,
    AxisAtom,
    Compute,
    Index,
    IndexValue,
    Kernel,
    Load,
    Operand,
    Section,
    Statement,
    Store,
    Term,
)
from stagewire.loop_ops import may_raise
from stagewire.statements import live_statements, map_indices

TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
TRUTH = {
    "lt": lambda value, bound: value < bound,
    "le": lambda value, bound: value <= bound,
    "gt": lambda value, bound: value > bound,
    "ge": lambda value, bound: value >= bound,
}


class Condition(NamedTuple):
    """`step` * axis + `start` compared with `bound`."""

    result: str
    axis: str
    op: str
    step: int
    start: int
    bound: int

    def at(self, point: int) -> bool:
        return TRUTH[self.op](self.step * point + self.start, self.bound)

    def change(self) -> int:
        """The first point of the axis at which it is no longer what it is before (it changes at most once)."""
        distance = self.bound - self.start if self.op in ("lt", "ge") else self.bound - self.start + 1
        return -(-distance // self.step) if self.step > 0 else distance // self.step + 1


def split_pieces(kernel: Kernel) -> tuple[Kernel, ...]:
    """The kernel as kernels over parts of its points, in any order; itself if there is nothing to cut.

    Along the axis that memory is contiguous along, the parts are sections of one kernel: a row is written from its
    start to its end, as it lies in memory.
    """
    if not is_pointwise(kernel):
        return (kernel,)
    done = (kernel,)
    for axis in kernel.axes:
        if not _is_contiguous(kernel, axis):
            found = tuple(part for one in done for part in parts_along(one, axis, 1))
            done = found if len(found) <= TUNED.most_pieces else done
    for axis in kernel.axes:
        if _is_contiguous(kernel, axis):
            return tuple(one for part in done for one in _in_sections(part, axis))
    return done


def is_pointwise(kernel: Kernel) -> bool:
    """Whether nothing is combined, and no point stores where another may."""
    if len(kernel.sections) != 1 or kernel.sections[0].axes:
        return False
    return all(not isinstance(s, Store) or s.mode == "set" for s in kernel.sections[0].statements)


def _is_contiguous(kernel: Kernel, axis: Axis) -> bool:
    return any(coefficient(s.index, axis.name) == 1 for s in kernel.sections[0].statements if isinstance(s, Store))


def _in_sections(kernel: Kernel, axis: Axis) -> tuple[Kernel, ...]:
    """The parts along a contiguous axis: sections of one kernel, unless something is read across."""
    parts = parts_along(kernel, axis, TUNED.shortest_piece)
    if len(parts) == 1:
        parts = _around_interior(kernel, axis)
    else:
        statements = [s for part in parts for s in part.sections[0].statements]
        if any(coefficient(s.index, axis.name) not in (0, 1) for s in statements if isinstance(s, Load | Store)):
            return parts
    if len(parts) == 1 or len(parts) > TUNED.most_pieces:
        return parts if len(parts) == 1 else (kernel,)
    sections = tuple(_section(part, axis.name, number) for number, part in enumerate(parts))
    axes = tuple(one for one in kernel.axes if one.name != axis.name)
    return (msgspec.structs.replace(kernel, axes=axes, sections=sections),)


def _section(kernel: Kernel, name: str, number: int) -> Section:
    """A pointwise kernel as a section along one axis, under a name of its own."""
    own = next(Axis(f"{name}.{number}", axis.size) for axis in kernel.axes if axis.name == name)
    statements = tuple(_moved(s, name, 0, own.name) for s in kernel.sections[0].statements)
    return Section((own,), statements)


def _around_interior(kernel: Kernel, axis: Axis) -> tuple[Kernel, ...]:
    """The kernel along one axis: in front of what is not clamped, there, and behind it."""
    found = interior(kernel, axis)
    if found is None or (
        isinstance(found.first, int) and isinstance(found.last, int) and found.length < TUNED.shortest_piece
    ):
        return (kernel,)
    free = tuple(without_unused(found.statements))
    spans = ((0, found.first, None), (found.first, found.last, free), (found.last, axis.size, None))
    return tuple(_span(kernel, axis, *span) for span in spans if span[1] - span[0] != 0)


def _span(kernel: Kernel, axis: Axis, start: Dim, end: Dim, given: tuple[Statement, ...] | None) -> Kernel:
    statements = kernel.sections[0].statements if given is None else given
    moved = tuple(_moved(s, axis.name, start, axis.name) for s in statements)
    axes = tuple(Axis(axis.name, end - start) if one.name == axis.name else one for one in kernel.axes)
    return msgspec.structs.replace(kernel, axes=axes, sections=(Section((), moved),))


def _settled_where(statements: Iterable[Statement], known: dict[str, bool]) -> list[Statement]:
    """What is left to do where the truth of some values is known."""
    return without_unused([one for s in statements if (one := _settled(s, known)) is not None])


def parts_along(kernel: Kernel, given: Axis, shortest: int) -> tuple[Kernel, ...]:
    """The kernel cut along one axis, into parts of no fewer points than `shortest`."""
    axis = next(axis for axis in kernel.axes if axis.name == given.name)
    conditions = [one for one in _conditions(kernel.sections[0]) if one.axis == axis.name]
    if not conditions or not isinstance(axis.size, int):
        return (kernel,)
    cuts = [0]
    for cut in sorted({one.change() for one in conditions}):
        if 0 < cut < axis.size and min(cut - cuts[-1], axis.size - cut) >= shortest:
            cuts.append(cut)
    if len(cuts) == 1:
        return (kernel,)
    return tuple(_piece(kernel, axis, conditions, start, end) for start, end in pairwise((*cuts, axis.size)))


def narrowed(kernel: Kernel, condition: str) -> Kernel | None:
    """The pointwise kernel over those points alone at which a condition holds; sizes may be symbols. None where the
    condition is more than bounds of axes."""
    section = kernel.sections[0]
    found: dict[str, Statement] = {s.result: s for s in section.statements if isinstance(s, Compute | IndexValue)}
    known: dict[str, bool] = {}
    bounds: dict[str, tuple[Dim, Dim]] = {axis.name: (0, axis.size) for axis in kernel.axes}
    open_ = [condition]
    while open_:
        name = open_.pop()
        known[name] = True
        match found.get(name):
            case Compute(_, "logical_and", (Ref(left), Ref(right))):
                open_ += [left, right]
            case Compute(_, op, (left, right)) if op in TRUTH:
                bound = _bound(op, _linear(left, found), _linear(right, found))
                if bound is None:
                    return None
                axis, low, high = bound
                first, last = bounds[axis]
                bounds[axis] = (
                    first if low is None else greatest(first, low),
                    last if high is None else least(last, high),
                )
            case _:
                return None
    statements = section.statements
    for axis, (first, _) in bounds.items():
        statements = tuple(_moved(s, axis, first, axis) for s in statements)
    settled = _settled_where(statements, known)
    axes = tuple(Axis(name, greatest(last - first, 0)) for name, (first, last) in bounds.items())
    return msgspec.structs.replace(kernel, axes=axes, sections=(Section((), tuple(settled)),))


def _linear(operand: Operand, found: Mapping[str, Statement]) -> Index | None:
    """A number as an index: of no axis, or of one in steps of one."""
    if isinstance(operand, int):
        return Index(operand)
    given = found.get(operand.name) if isinstance(operand, Ref) else None
    match given.index if isinstance(given, IndexValue) else None:
        case Index(_, () | (Term(1, AxisAtom()),)) as index:
            return index
    return None


def _bound(op: str, left: Index | None, right: Index | None) -> tuple[str, Dim | None, Dim | None] | None:
    """(axis, its first point or None, the point behind its last or None) where a comparison says that."""
    match left, right:
        case (Index(_, ()), Index(_, (_,))):
            op, left, right = TURNED[op], right, left
        case (Index(_, (_,)), Index(_, ())):
            pass
        case _:
            return None
    axis, distance = left.terms[0].atom.name, right.constant - left.constant  # type: ignore[union-attr]
    if op in ("ge", "gt"):
        return axis, distance + (op == "gt"), None
    return axis, None, distance + (op == "le")


def _conditions(section: Section) -> list[Condition]:
    """Comparisons of a number with what grows along one axis in equal steps."""
    values = {s.result: s.index for s in section.statements if isinstance(s, IndexValue)}
    found = []
    for statement in section.statements:
        match statement:
            case Compute(result, op, (Ref(name), int(bound)), _) if op in TRUTH and name in values:
                pass
            case Compute(result, op, (int(bound), Ref(name)), _) if op in TRUTH and name in values:
                op = TURNED[op]
            case _:
                continue
        match values[name]:
            case Index(int(start), (Term(int(step), AxisAtom(axis)),)) if step:
                found.append(Condition(result, axis, op, step, start, bound))
    return found


def _piece(kernel: Kernel, axis: Axis, conditions: list[Condition], start: int, end: int) -> Kernel:
    """The points from `start` to `end` of the axis, which then begins at 0."""
    known = {one.result: one.at(start) for one in conditions if one.at(start) == one.at(end - 1)}
    return _span(kernel, axis, start, end, tuple(_settled_where(kernel.sections[0].statements, known)))


def _moved(statement: Statement, axis: str, start: Dim, name: str) -> Statement:
    """The statement with `name` + start for `axis`."""
    meaning = {axis: Index(start, (Term(1, AxisAtom(name)),))}
    return map_indices(statement, lambda index: inline(index, meaning))


def _settled(statement: Statement, known: dict[str, bool]) -> Statement | None:
    """The statement where the truth of some values is known, which grows by what follows; None if it does nothing."""
    match statement:
        case Compute(result, "where", (condition, yes, no), dtype) if (truth := _truth(condition, known)) is not None:
            return Compute(result, "convert", (yes if truth else no,), dtype)
        case Compute(result, "logical_and" | "logical_or" as op, (left, right), "bool"):
            for one, other in ((left, right), (right, left)):
                truth = _truth(one, known)
                if truth is not None and truth == (op == "logical_or"):
                    known[result] = truth
                elif truth is not None and (second := _truth(other, known)) is not None:
                    known[result] = second
        case Compute(result, "logical_not", (operand,), "bool") if (truth := _truth(operand, known)) is not None:
            known[result] = not truth
        case Load(mask=Ref() as mask) if (truth := _truth(mask, known)) is not None:
            if not truth:
                return Compute(statement.result, "convert", (statement.other,), statement.dtype)
            return msgspec.structs.replace(statement, mask=None, other=0)
        case Store(mask=Ref() as mask) if (truth := _truth(mask, known)) is not None:
            return msgspec.structs.replace(statement, mask=None) if truth else None
    return statement


def _truth(operand: Operand, known: dict[str, bool]) -> bool | None:
    return known.get(operand.name) if isinstance(operand, Ref) else operand if isinstance(operand, bool) else None


def without_unused(statements: Sequence[Statement]) -> list[Statement]:
    """Without values that nothing reads; what may report an error stays."""
    return live_statements(statements, lambda one: may_raise(one) or isinstance(one, Store), set())
