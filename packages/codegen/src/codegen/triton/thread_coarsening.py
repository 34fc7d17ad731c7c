"""Thread coarsening: a thread computes some points of an axis, where much of that is the same for all of them.

for i in 4096, j in 64 {                 for i in 1024, j in 64 {
  y[i, j] = x[i, j] * f(w[j])     =>       for k in 4 { y[i + 1024*k, j] = x[i + 1024*k, j] * f(w[j]) }
"""

from __future__ import annotations

from msgspec.structs import replace

from codegen.triton import tuning
from codegen.triton.accesses import fixed_step, varies
from stagewire.loop import Axis, AxisAtom, Compute, Index, Kernel, Load, Reduce, Scan, Section, Statement, Store, Term
from stagewire.statements import indices, map_indices, results, used_values


def coarsened(kernel: Kernel, most: int) -> tuple[Kernel, int] | None:
    """A pointwise kernel with so many points of an axis, `most` or fewer, as an inner loop; None where they have little
    in common. It pays for what channels are scaled by and moved, and for angles of positions."""
    if len(kernel.axes) < 2 or len(kernel.sections) != 1:
        return None
    t, (section,) = tuning.SM_90, kernel.sections
    if any(isinstance(s, Reduce | Scan) or (isinstance(s, Store) and s.mode != "set") for s in section.statements):
        return None
    found = [
        (_in_common(section, axis), axis, axis.size // side, side)
        for axis in kernel.axes[:-1]
        if isinstance(axis.size, int)
        and (side := next((n for n in t.coarsening if n <= most and axis.size % n == 0), 0))
    ]
    count, axis, size, side = max(found, key=lambda one: one[0], default=(0, kernel.axes[0], 0, 0))
    if count < t.least_shared:
        return None
    axes = tuple(replace(one, size=size) if one == axis else one for one in kernel.axes)
    inner = Axis(f"{axis.name}_coarsened", side)
    statements = tuple(_spread(statement, axis, inner, size) for statement in section.statements)
    return replace(kernel, axes=axes, sections=(Section((inner,), statements),)), side


def _in_common(section: Section, axis: Axis) -> int:
    """How many loads and operations of a section, indices apart, are the same for all points of an axis; 0 where memory
    does not go on in steps along the axis, or each point loads much of its own."""
    count, own, changing = 0, 0, set[str]()
    for statement in section.statements:
        if any(fixed_step(index, axis) is None for index in indices(statement)):
            return 0
        moves = any(varies(index, axis) for index in indices(statement))
        if moves or not changing.isdisjoint(used_values(statement)):
            changing.update(results(statement))
            own += isinstance(statement, Load)
        elif isinstance(statement, Store):
            return 0
        else:
            count += isinstance(statement, Load | Compute)
    return count if own <= tuning.SM_90.most_own_loads else 0


def _spread(statement: Statement, axis: Axis, inner: Axis, distance: int) -> Statement:
    """The statement at several points of an axis that are so far from each other."""

    def spread(index: Index) -> Index:
        each = fixed_step(index, axis)
        return Index(index.constant, (*index.terms, Term(each * distance, AxisAtom(inner.name)))) if each else index

    return map_indices(statement, spread)
