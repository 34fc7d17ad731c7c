"""Unroll and jam: a pointwise kernel computes several neighbours along an outer axis at once, where much of what it
loads and computes is the same for them (the weights of a depthwise convolution, the factors of a batch norm).

    for w in 56, c in 96 { y[w, c] = x[w, c] * a[c] }
    for c.out in 3, w in 7, c in 32 { v = a[c]; y[8*w, c] = x[8*w, c] * v; ... y[8*w + 7, c] = x[8*w + 7, c] * v }

The lanes run along memory; where they are many, in blocks outside of the axis, so that what is the same stays in cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from codegen.cpp.tuning import TUNED
from codegen.index_splitting import is_pointwise
from stagewire import index as ix
from stagewire.loop import Axis, Compute, Kernel, Load, Section, Statement, Store
from stagewire.loop_ops import cost
from stagewire.statements import axes_of_values, map_indices, map_statements, rename, used_axes, used_values


def unroll_and_jam(kernel: Kernel) -> tuple[Kernel, ...]:
    """The kernel as kernels over parts of its points, in any order; itself where nothing is gained."""
    lane = _lane(kernel) if is_pointwise(kernel) else None
    if lane is None:
        return (kernel,)
    (section,) = kernel.sections
    axes = [axis for axis in kernel.axes if axis != lane and _is_known(axis, 2)]
    best = next(
        (a for a in reversed(axes) if _shared(section.statements, a.name, lane.name) >= TUNED.jammed_cost), None
    )
    if best is None:
        return (kernel,)
    count = _count(best.size, len(section.statements))  # type: ignore[arg-type]
    blocked = _in_blocks(kernel, lane, best)
    whole = best.size // count  # type: ignore[operator]
    parts = ((0, whole, count), (whole * count, 1, best.size - whole * count))  # type: ignore[operator]
    return tuple(_jammed(blocked, best, *part) for part in parts if part[2])


def _is_known(axis: Axis, least: int) -> bool:
    return isinstance(axis.size, int) and axis.size >= least


def _lane(kernel: Kernel) -> Axis | None:
    """The axis along which every store goes in steps of one element, and every load so or not at all."""
    every = [s for s in kernel.sections[0].statements if isinstance(s, Load | Store)]
    for axis in kernel.axes:
        steps = {(isinstance(s, Store), ix.coefficient(s.index, axis.name)) for s in every}
        if steps <= {(True, 1), (False, 1), (False, 0)} and _is_known(axis, TUNED.jammed_lanes):
            return axis
    return None


def _shared(statements: Sequence[Statement], axis: str, lane: str) -> int:
    """What computing the values takes that are the same along an axis, and others along the lanes."""
    changing = axes_of_values(statements)
    values = [s for s in statements if not isinstance(s, Store) and lane in changing[s.result]]  # type: ignore[union-attr]
    return sum(cost(s.op) if isinstance(s, Compute) else 1 for s in values if axis not in changing[s.result])  # type: ignore[union-attr]


def _count(size: int, statements: int) -> int:
    """How many neighbours are computed at once: what leaves few over, and not too much text."""
    most = max(min(size, TUNED.jammed_points, TUNED.jammed_statements // statements), 1)
    return min(range(max(most // 2, 1), most + 1), key=lambda n: (size % n, -n))


def _in_blocks(kernel: Kernel, lane: Axis, axis: Axis) -> Kernel:
    """The kernel whose lanes go in blocks, the axis inside of these."""
    block = next((n for n in TUNED.jammed_blocks if lane.size % n == 0 and lane.size > n), lane.size)  # type: ignore[operator]
    outer = Axis(f"{lane.name}.out", lane.size // block)
    meaning = {lane.name: ix.add(ix.scale(ix.axis(outer.name), block), ix.axis(lane.name))}
    rest = tuple(one for one in kernel.axes if one not in (lane, axis))
    moved = map_statements(kernel, lambda one: map_indices(one, partial(ix.inline, mapping=meaning)))
    return replace(moved, axes=(*rest, outer, axis, Axis(lane.name, block)))


def _jammed(kernel: Kernel, axis: Axis, start: int, size: int, count: int) -> Kernel:
    """The kernel over start + count * (size points) of an axis, `count` of its points at each of these."""
    statements = kernel.sections[0].statements
    changing = axes_of_values(statements)
    names = [{name: f"{name}.{k}" for name, axes in changing.items() if axis.name in axes} for k in range(count)]
    found: list[Statement] = []
    for one in statements:
        if axis.name not in used_axes(one).union(*(changing[name] for name in used_values(one))):
            found.append(one)
            continue
        for k in range(count):
            at = {axis.name: ix.shift(ix.scale(ix.axis(axis.name), count), start + k)}
            found.append(rename(map_indices(one, partial(ix.inline, mapping=at)), names[k]))
    axes = tuple(Axis(axis.name, size) if one.name == axis.name else one for one in kernel.axes)
    return replace(kernel, axes=axes, sections=(Section((), tuple(found)),))
