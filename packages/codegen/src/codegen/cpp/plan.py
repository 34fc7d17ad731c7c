"""How a kernel is walked: which axis the vector lanes run along, in what tiles, and what the threads share out.

row plan     lanes run along an inner axis of each section; each outer point is handled alone (softmax of rows)
column plan  lanes run along an outer axis, a tile of outer points is handled together (sums of columns;
             pointwise kernels, whose axes are all outer)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from codegen.cpp.tuning import TUNED
from codegen.errors import UnsupportedKernel
from codegen.memory import indices_of
from stagewire.expr import Dim
from stagewire.index import coefficient, has_values, mentions
from stagewire.loop import Axis, Compute, Index, Kernel, Load, Reduce, Section, Store
from stagewire.loop_ops import cost
from stagewire.sizes import divides, estimate
from stagewire.statements import points_of, results, select, used_axes, used_values

COSTLY = 8
"""Instructions of an op that is computed by a function, or divides integers."""


class Plan(NamedTuple):
    """`lane`: the outer axis of a column plan, else None. `tile`: outer points along it that are handled together.

    `crossed`: an outer axis walked in tiles together with the lane, because some access is contiguous along it.
    `narrowest`: how wide a tile is at least where the threads are so many that each would have none else; 0: all tiles
    are as wide as `tile` says.
    `threads`: what is shared out: the outer points, the first inner axis of each section, or nothing.
    `exclusive`: the threads must split the lane axis alone (accumulating stores collide along the other axes).
    `vector`: whether points next to each other may be handled at once.
    """

    lane: Axis | None
    tile: Dim
    threads: Literal["outer", "inner", "none"]
    crossed: Axis | None = None
    exclusive: bool = False
    vector: bool = True
    narrowest: int = 0


def shares(kernel: Kernel, plan: Plan) -> int:
    """Into how many parts the outer points go to the threads at most."""
    if plan.lane is None:
        return estimate(points_of(kernel.axes))
    tiled = [axis for axis in (plan.lane, plan.crossed) if axis is not None]
    rest = [axis for axis in kernel.axes if axis not in tiled and not plan.exclusive]
    count = estimate(points_of(tuple(rest)))
    for axis in tiled:
        count *= -(-estimate(axis.size) // (plan.narrowest or estimate(plan.tile)))
    return count


def make_plan(kernel: Kernel, threshold: int) -> Plan:
    """Choose by estimated cost of the accesses; `threshold` is the work below which one thread does all.

    Where sizes are symbolic, that is left to the run: the plan shares out what could be shared out.
    """
    threshold = threshold if isinstance(total_work(kernel), int) else 0
    modes = {s.mode for s in select(kernel.sections, Store)}
    if "sum" in modes:
        raise UnsupportedKernel(f"{kernel.name} stores sums over its outer points: a form of kernels for a GPU")
    if "atomic_add" in modes:
        return _scatter_plan(kernel, threshold)
    candidates = sorted((_column_cost(kernel, axis), -number) for number, axis in enumerate(kernel.axes))
    lane = kernel.axes[-candidates[0][1]] if candidates else None
    if lane is None or (any(s.axes for s in kernel.sections) and _row_cost(kernel) <= candidates[0][0]):
        return _row_plan(kernel, threshold)
    return _column_plan(kernel, lane, threshold)


def _row_plan(kernel: Kernel, threshold: int) -> Plan:
    inner = sum(estimate(points_of(s.axes)) * _work(s) for s in kernel.sections)
    outer = estimate(points_of(kernel.axes))
    if inner * outer < threshold:
        return Plan(None, 1, "none")
    if outer >= TUNED.least_outer or inner < threshold or not all(isinstance(axis.size, int) for axis in kernel.axes):
        return Plan(None, 1, "outer" if outer > 1 else "none")
    return Plan(None, 1, "inner")


def _column_plan(kernel: Kernel, lane: Axis, threshold: int) -> Plan:
    others = estimate(points_of(tuple(a for a in kernel.axes if a.name != lane.name)))
    inner = sum(estimate(points_of(s.axes)) * _work(s) for s in kernel.sections)
    size = estimate(lane.size)
    total = inner * others * size
    if _is_pointwise(kernel):
        crossed = _crossed_axis(kernel, lane)
        tile = TUNED.longest_tile if crossed is None else TUNED.turned_tile
        if crossed is None and isinstance(lane.size, int) and (size <= tile or others >= TUNED.enough_tiles):
            tile = min(size, TUNED.whole_tile) or 1
        return Plan(lane, tile, "outer" if total >= threshold else "none", crossed)
    for tile in TUNED.column_tiles:
        if others * -(-size // tile) >= TUNED.enough_columns or total < threshold:
            return _sums(kernel, lane, tile, "outer" if total >= threshold else "none")
    longest = max(estimate(points_of(s.axes)) for s in kernel.sections)
    if longest < TUNED.long_column:
        return _sums(kernel, lane, TUNED.column_tiles[-1], "outer")
    return Plan(lane, min(TUNED.widest_column_tile, _whole_vectors(size)), "inner")


def _sums(kernel: Kernel, lane: Axis, tile: int, threads: Literal["outer", "none"]) -> Plan:
    """A plan whose tiles are at least so wide, and as wide as is good for memory where the threads are few."""
    if not isinstance(lane.size, int):
        return Plan(lane, tile, threads)
    tile, wide = (min(width, _whole_vectors(lane.size)) for width in (tile, _wide_tile(kernel)))
    return Plan(lane, wide, threads, narrowest=tile) if wide > tile else Plan(lane, tile, threads)


def _wide_tile(kernel: Kernel) -> int:
    """How many sums of columns lie in the cache that is nearest; 0 where a tile is read more than once, which is to be
    in a cache by then. Long rows of memory are read faster than short ones."""
    sums = [len(list(select((section,), Reduce))) for section in kernel.sections if section.axes]
    return TUNED.column_bytes // (8 * sums[0]) if len(sums) == 1 and sums[0] else 0


def _whole_vectors(size: int) -> int:
    return -(-size // TUNED.lanes) * TUNED.lanes


def _scatter_plan(kernel: Kernel, threshold: int) -> Plan:
    """Threads and lanes may only split an axis along which no two points meet in one element."""
    total = estimate(total_work(kernel))
    for axis in reversed(kernel.axes):
        if _is_exclusive(kernel, axis):
            size = estimate(axis.size)
            tile = next(tile for least, tile in TUNED.scatter_tiles if size >= least)
            return Plan(axis, tile, "outer" if total >= threshold else "none", exclusive=True)
    return Plan(None, 1, "none", vector=False)


def _is_exclusive(kernel: Kernel, axis: Axis) -> bool:
    for section in kernel.sections:
        for store in section.statements:
            if not isinstance(store, Store):
                continue
            step = coefficient(store.index, axis.name)
            if step is None or step == 0:
                return False
            span = (abs(step) if isinstance(step, int) else step) * axis.size
            for term in store.index.terms:
                own = getattr(term.atom, "name", None) == axis.name
                if not own and not divides(span, term.coefficient):
                    return False
    return True


def _access_cost(index: Index, axis: str) -> float:
    """The cost of one access a point when the lanes run along `axis`: contiguous 1, broadcast less, gathered more.

    In steps of up to 16 the neighbours of what is read are read soon; steps of a KiB leave them no place in the cache.
    """
    step = coefficient(index, axis)
    if has_values(index):
        return TUNED.gathered if step != 1 or mentions(index, (axis,)) else TUNED.gathered_runs
    if step == 0:
        return TUNED.broadcast
    if step == 1:
        return 1.0
    if step is None:
        return TUNED.strided
    step = abs(estimate(step))
    if step <= TUNED.short_step:
        return TUNED.short_strided
    return TUNED.conflicting if step % TUNED.conflicting_step == 0 else TUNED.strided


def _short(size: Dim) -> float:
    """Waste of lanes on a short axis."""
    number = max(estimate(size), 1)
    return _whole_vectors(number) / number


def _section_cost(section: Section, axis: Axis) -> float:
    """The cost of all points of a section when the lanes run along an axis, its waste apart."""
    accesses = sum(_access_cost(index, axis.name) for index in indices_of(section))
    return estimate(points_of(section.axes)) * (accesses + TUNED.statement * len(section.statements))


def _column_cost(kernel: Kernel, axis: Axis) -> float:
    cost = sum(_section_cost(section, axis) for section in kernel.sections)
    return (cost - _saved_by_turning(kernel, axis)) * _short(axis.size) * TUNED.column


def _saved_by_turning(kernel: Kernel, lane: Axis) -> float:
    """How much less loads cost that lie along another axis, where tiles of them are transposed (`_column_plan`)."""
    crossed = _crossed_axis(kernel, lane)
    if crossed is None:
        return 0.0
    turned = [load for load in select(kernel.sections, Load) if is_turned(load, crossed, lane)]
    return sum(max(_access_cost(load.index, lane.name) - TUNED.turned, 0.0) for load in turned)


def _row_cost(kernel: Kernel) -> float:
    cost = 0.0
    longest = max(estimate(points_of(section.axes)) for section in kernel.sections)
    for section in kernel.sections:
        if not section.axes:
            cost += len(section.statements)
            continue
        axis = lane_of(section)
        is_border = estimate(points_of(section.axes)) * TUNED.border <= longest
        waste = TUNED.scalar if is_border else _short(axis.size)
        cost += _section_cost(section, axis) * waste
    return cost


def lane_of(section: Section) -> Axis:
    """The inner axis that a row plan walks innermost."""
    costs = []
    for number, axis in enumerate(section.axes):
        accesses = sum(_access_cost(index, axis.name) for index in indices_of(section))
        costs.append(((accesses + TUNED.statement) * _short(axis.size), -number))
    return section.axes[-min(costs)[1]]


def _is_pointwise(kernel: Kernel) -> bool:
    return len(kernel.sections) == 1 and not kernel.sections[0].axes


def _crossed_axis(kernel: Kernel, lane: Axis) -> Axis | None:
    """An outer axis of a pointwise kernel along which some access is contiguous that is strided along the lane."""
    if not _is_pointwise(kernel):
        return None
    for axis in kernel.axes:
        if axis.name == lane.name or estimate(axis.size) < TUNED.least_crossed:
            continue
        for index in indices_of(kernel.sections[0]):
            if coefficient(index, axis.name) == 1 and coefficient(index, lane.name) not in (0, 1):
                return axis
    return None


def is_turned(load: Load, crossed: Axis, lane: Axis) -> bool:
    """Whether a load without conditions is contiguous along the crossed axis, and in fixed steps along the lane."""
    step = coefficient(load.index, lane.name)
    plain = load.mask is None and not has_values(load.index)
    return plain and coefficient(load.index, crossed.name) == 1 and step not in (None, 0, 1)


def total_work(kernel: Kernel) -> Dim:
    """A rough count of scalar operations."""
    inner: Dim = 0
    for section in kernel.sections:
        inner = inner + points_of(section.axes) * _work(section)
    return points_of(kernel.axes) * inner


def _work(section: Section) -> int:
    work = 0
    for statement in section.statements:
        work += TUNED.costly if isinstance(statement, Compute) and cost(statement.op) >= COSTLY else 1
    return max(work, 1)


BEFORE, BETWEEN, INSIDE = 0, 1, 2
"""Where a statement runs: before the section's loops (it depends on no axis of the section, nor on the lane), before
the loop of the lanes (it does not depend on the lane), or inside."""


def levels(section: Section, lane: str, fixed: Mapping[str, int]) -> list[int]:
    """Loop-invariant code motion: the level of each statement; `fixed` gives that of values from earlier sections
    (BEFORE if not in it). Compilers hoist too, but not before they have split the loop on a condition that does not
    change in it, and a split loop is no longer vectorised."""
    inner = {axis.name: BETWEEN for axis in section.axes}
    inner[lane] = INSIDE
    stored = {s.buffer for s in section.statements if isinstance(s, Store)}
    never_runs = any(axis.size == 0 for axis in section.axes)
    of: dict[str, int] = dict(fixed)
    found: list[int] = []
    for statement in section.statements:
        level = max((of.get(name, BEFORE) for name in used_values(statement)), default=BEFORE)
        level = max((level, *(inner.get(axis, BEFORE) for axis in used_axes(statement))))
        if isinstance(statement, Store | Reduce) or never_runs:
            level = INSIDE
        if isinstance(statement, Load) and statement.buffer in stored:
            level = INSIDE
        found.append(level)
        of |= dict.fromkeys(results(statement), BEFORE if isinstance(statement, Reduce) else level)
    return found
