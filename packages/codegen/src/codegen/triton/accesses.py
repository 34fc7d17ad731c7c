"""What the loops of a kernel read and write, and in which order: what its tiles are chosen by."""

from __future__ import annotations

from stagewire import index as ix
from stagewire.expr import Dim
from stagewire.loop import Axis, AxisAtom, Compute, Index, Kernel, Load, ModAtom, Reduce, Scan, Section, Store, Term
from stagewire.statements import select
from stagewire.types import ITEM_SIZE, numel


def points(axes: tuple[Axis, ...]) -> Dim:
    """The number of points of a loop nest."""
    return numel(tuple(axis.size for axis in axes))


def indices_of(section: Section) -> list[Index]:
    """Where a section reads and writes."""
    return [one.index for one in select((section,), Load | Store)]


def fixed_step(index: Index, axis: Axis) -> int | None:
    """By how much an index grows along an axis; None where that is not one number, and where values take part."""
    step = ix.coefficient(index, axis.name)
    return step if isinstance(step, int) and not ix.has_values(index) else None


def varies(index: Index, axis: Axis) -> bool:
    """Whether an index may be another at another point of an axis; a value may depend on anything."""
    return ix.has_values(index) or ix.mentions(index, (axis.name,))


def runs_along(index: Index, axis: Axis) -> bool:
    """Whether neighbours on an axis are neighbours in memory, but for the ends of what the axis is made of."""
    return any(
        term.coefficient == 1
        and (term.atom.numerator if isinstance(term.atom, ModAtom) else Index(0, (Term(1, term.atom),)))
        == Index(0, (Term(1, AxisAtom(axis.name)),))
        for term in index.terms
    )


def directions(kernel: Kernel) -> tuple[int, int]:
    """How many accesses of the inner loops are contiguous along these, and how many along the outer loop."""
    if not kernel.axes:
        return 1, 0
    fast, rows, columns = kernel.axes[-1], 0, 0
    for section in kernel.sections:
        for index in indices_of(section) if section.axes else ():
            rows += runs_along(index, section.axes[-1]) and varies(index, fast)
            columns += runs_along(index, fast) and varies(index, section.axes[-1])
    return rows, columns


def is_of_runs(index: Index, section: Section) -> bool:
    """Whether an index is another for each run along the fastest axis of a section, and the same in all of it."""
    *slow, fast = section.axes
    return any(varies(index, axis) for axis in slow) and not varies(index, fast)


def has_fixed_length(section: Section) -> bool:
    """Whether a loop is as long for all sizes of the program."""
    return isinstance(points(section.axes), int)


def narrowest_item(kernel: Kernel) -> int:
    """The least bytes of an element that an inner loop reads."""
    loops = [section for section in kernel.sections if section.axes]
    return min((ITEM_SIZE[load.dtype] for load in select(loops, Load)), default=4)


def held_items(kernel: Kernel) -> tuple[int, ...]:
    """The bytes of each element of its own that more than one loop reads at each point of a row; none where a loop goes
    on from tile to tile."""
    if kinds_of_scans(kernel):
        return ()
    readers: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for section in kernel.sections:
        reads = select((section,), Load)
        inner, outer = section.axes[-1:], kernel.axes
        varying = {s.buffer: s for s in reads if all(any(varies(s.index, a) for a in way) for way in (inner, outer))}
        for buffer, load in varying.items():
            readers[buffer] = readers.get(buffer, 0) + 1
            sizes[buffer] = ITEM_SIZE[load.dtype]
    return tuple(sizes[buffer] for buffer, count in readers.items() if count > 1)


def kinds_of_scans(kernel: Kernel) -> set[str]:
    """The kinds of the scans of a kernel."""
    return {scan.scan for scan in select(kernel.sections, Scan)}


def scans_long(kernel: Kernel) -> bool:
    """Whether a kernel scans elements of 64 bits."""
    return any(ITEM_SIZE[scan.dtype] == 8 for scan in select(kernel.sections, Scan))


def summed(kernel: Kernel) -> bool:
    """Whether a kernel stores sums over outer points."""
    return any(store.mode == "sum" for store in select(kernel.sections, Store))


def has_moments(kernel: Kernel) -> bool:
    """Whether a kernel computes means and deviations."""
    return any(one.reduction == "welford" for one in select(kernel.sections, Reduce))


def finds_positions(kernel: Kernel) -> bool:
    """Whether a kernel finds the place of a greatest or least value."""
    return any(one.reduction in ("argmax", "argmin") for one in select(kernel.sections, Reduce))


def has_exponentials(kernel: Kernel) -> bool:
    """Whether a kernel computes exponentials."""
    return any(one.op == "exp" for one in select(kernel.sections, Compute))
