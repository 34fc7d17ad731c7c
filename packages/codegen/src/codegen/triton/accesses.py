"""What the loops of a kernel read and write, and in which order: what its tiles are chosen by."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from codegen.memory import indices_of
from stagewire import index as ix
from stagewire.expr import Dim
from stagewire.loop import Axis, AxisAtom, Compute, Index, Kernel, Load, ModAtom, Reduce, Scan, Section, Store, Term
from stagewire.sizes import NO_HINTS, Hints, rough
from stagewire.statements import points_of, select
from stagewire.types import ITEM_SIZE


@dataclass(frozen=True)
class Accesses:
    """A kernel, and what its schedule depends on; sizes are rough, by the hints for symbols."""

    kernel: Kernel
    hints: Hints = field(default_factory=lambda: NO_HINTS)

    @cached_property
    def outer(self) -> int:
        """Points of the outer axes."""
        return rough(points_of(self.kernel.axes), self.hints)

    @cached_property
    def inner(self) -> int:
        """Points of the longest inner loop."""
        return max((rough(points_of(loop.axes), self.hints) for loop in self.loops), default=0)

    @cached_property
    def loops(self) -> list[Section]:
        """The sections with inner axes."""
        return [section for section in self.kernel.sections if section.axes]

    @cached_property
    def is_pointwise(self) -> bool:
        return not self.loops and not select(self.kernel.sections, Reduce)

    @cached_property
    def lengths(self) -> list[Dim]:
        """Points of each inner loop."""
        return [points_of(loop.axes) for loop in self.loops]

    @cached_property
    def longest(self) -> int:
        """The greatest of the lengths that are known."""
        return max((count for count in self.lengths if isinstance(count, int)), default=0)

    @cached_property
    def directions(self) -> tuple[int, int]:
        """How many accesses of the inner loops are contiguous along these, and how many along the outer loop."""
        if not self.kernel.axes:
            return 1, 0
        fast, rows, columns = self.kernel.axes[-1], 0, 0
        for section in self.loops:
            for index in indices_of(section):
                rows += runs_along(index, section.axes[-1]) and varies(index, fast)
                columns += runs_along(index, fast) and varies(index, section.axes[-1])
        return rows, columns

    @cached_property
    def count(self) -> int:
        """How many accesses there are."""
        return sum(len(indices_of(section)) for section in self.kernel.sections)

    @cached_property
    def scans(self) -> frozenset[str]:
        """The kinds of scans."""
        return frozenset(one.scan for one in select(self.kernel.sections, Scan))

    @cached_property
    def reductions(self) -> frozenset[str]:
        """The kinds of reductions."""
        return frozenset(one.reduction for one in select(self.kernel.sections, Reduce))

    @property
    def has_moments(self) -> bool:
        return "welford" in self.reductions

    @property
    def has_positions(self) -> bool:
        return not self.reductions.isdisjoint(("argmax", "argmin"))

    @cached_property
    def has_exponentials(self) -> bool:
        return any(one.op == "exp" for one in select(self.kernel.sections, Compute))

    @cached_property
    def sums(self) -> list[Store]:
        """The stores of sums over outer points."""
        return [store for store in select(self.kernel.sections, Store) if store.mode == "sum"]

    @cached_property
    def narrowest(self) -> int:
        """The least bytes of an element that an inner loop reads."""
        return min((ITEM_SIZE[load.dtype] for load in select(self.loops, Load)), default=4)

    @cached_property
    def is_product(self) -> bool:
        """Whether one loop sums up rows, some of which are read again at other outer points, as a product does."""
        if len(self.loops) != 1 or self.reductions != {"sum"} or self.scans:
            return False
        (section,) = self.loops
        read = [one.index for one in select(self.loops, Load)]
        along = [index for index in read if any(varies(index, axis) for axis in section.axes)]
        return len({frozenset(axis.name for axis in self.kernel.axes if varies(index, axis)) for index in along}) > 1

    @cached_property
    def reread(self) -> tuple[int, ...]:
        """The bytes of each element that more than one loop reads at each point of a row; none of loops that scan."""
        if self.scans:
            return ()
        readers: dict[str, list[int]] = {}
        for section in self.loops:
            for buffer, size in self.of_points(section, section.axes[-1:]).items():
                readers.setdefault(buffer, []).append(size)
        return tuple(sizes[-1] for sizes in readers.values() if len(sizes) > 1)

    def of_points(self, section: Section, inner: tuple[Axis, ...]) -> dict[str, int]:
        """Bytes of an element of what a section reads that varies along some of its `inner` axes and an outer one."""
        return {
            s.buffer: ITEM_SIZE[s.dtype]
            for s in select((section,), Load)
            if all(any(varies(s.index, axis) for axis in way) for way in (inner, self.kernel.axes))
        }


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
