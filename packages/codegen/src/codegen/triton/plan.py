"""The schedule of a loop kernel: tiles, warps, stages, what is unrolled and cached. Emitters only render it.

row      the inner loop runs along memory: whole rows where they fit in a tile, else a loop of tiles
column   the outer loop does: a few inner points of many outer ones at a time
tiled    no inner loop: a two-dimensional grid, where memory runs along one axis here, along another there, or where
         what is read for a whole row (a factor for each channel) would be read and computed for each of its points
shared   no inner loop: a thread computes some points of one axis (`thread_coarsening.py`)
product  a sum of products of few rows, by tensor cores: all rows and some columns at a time (`few_rows.py`)

A schedule comes from tables, of which the first row that applies is taken: `POINTWISE` and `LOOPS` say how a kernel is
cut into tiles, `WARPS` and `ELEMENTS` how many threads compute one, `AHEAD` how many tiles are loaded ahead. Their
numbers are in `tuning.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from codegen.errors import UnsupportedKernel
from codegen.memory import indices_of
from codegen.triton import tuning
from codegen.triton.accesses import Accesses, fixed_step, runs_along, varies
from codegen.triton.few_rows import MOST_ROWS, FewRows, few_rows_of
from codegen.triton.reductions import Softmax, softmax_of
from codegen.triton.scans import parted
from codegen.triton.thread_coarsening import coarsened
from codegen.triton.tuning import VECTOR_BYTES, WARP, Tuning
from stagewire import index as ix
from stagewire.expr import Dim, Expr
from stagewire.loop import Axis, AxisAtom, FloorDivAtom, Index, Kernel, Load, Reduce, Scan, Section, Store, Term
from stagewire.sizes import NO_HINTS, Hints, divides, rough
from stagewire.statements import indices, map_indices, points_of, select
from stagewire.types import ITEM_SIZE


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """How a kernel is cut.

    kernel: perhaps with an outer axis made an inner one
    outer, inner: XBLOCK and RBLOCK, powers of two
    steps: points that follow each other which a lane scans serially, of scans of columns
    part: outer points of each sum over rows; a program computes them tile by tile
    cached: tiles of an unrolled loop that stay in registers for later loops; None: the loop is not unrolled
    narrow: whether what is cached stays in 16 bits
    registers: of a thread at most; 0: any number
    chained: whether programs share a row (`scans.py`)
    run: points of the fastest inner axis, where no tile crosses the end of it; what does not vary along it is a scalar
    rows: the axes of a product of few rows
    of_bytes: whether weights are bytes, and what is multiplied with them is loaded as `few_rows.py` says
    """

    kernel: Kernel
    kind: Literal["row", "column", "tiled", "shared", "product"] = "row"
    outer: int = 1
    inner: int = 1
    steps: int = 1
    part: Dim = 0
    cached: int | None = None
    narrow: bool = False
    registers: int = 0
    chained: bool = False
    run: int = 0
    rows: FewRows | None = None
    of_bytes: bool = False

    @property
    def columns(self) -> int:
        """Those of a product that a program makes."""
        return self.outer // MOST_ROWS


@dataclass(frozen=True, kw_only=True)
class Plan(Tiles):
    """A schedule.

    num_warps: of a program
    num_stages: of the loop over each section: tiles in work at once, one of them computed
    turn_stages: the same of the loop over the tiles of a part
    vectors: elements of a row that a thread loads at once, by section
    rereads: whether several loops of large tiles go over rows that are too long to be cached
    may_fit: whether rows of symbolic length that are no longer than a tile are taken as a whole (a body of their own)
    is_crossed: whether memory runs along the loops here, and across them there
    softmax: the maxima and sums of exponentials, and which of them are made at once
    """

    num_warps: int
    num_stages: tuple[int, ...]
    turn_stages: int
    vectors: tuple[int, ...]
    rereads: bool
    may_fit: bool
    is_crossed: bool
    softmax: Softmax

    @property
    def grid(self) -> tuple[Dim, ...]:
        """The numbers of programs."""
        each = self.part if self.part != 0 else self.outer
        if self.rows is not None:
            blocks = (points_of(self.rows.many) + (self.columns - 1)) // self.columns
            return (points_of(self.rows.batch) * blocks,)
        columns = (points_of(self.kernel.axes) + each - 1) // each
        if self.kind != "tiled":
            return (columns * self.parts,)
        return (columns, (points_of(self.kernel.sections[0].axes) + self.inner - 1) // self.inner)

    @property
    def parts(self) -> Dim:
        """How many programs share a row."""
        return (points_of(self.loops[0]) + self.inner - 1) // self.inner if self.chained else 1

    @property
    def loops(self) -> list[tuple[Axis, ...]]:
        """The axes of the inner loops."""
        return [section.axes for section in self.kernel.sections if section.axes]


class Row(NamedTuple):
    """A row of a table: what it is for, when it applies, what it says (of tiles: None where it does not after all)."""

    name: str
    applies: Callable[..., Any]
    value: Callable[..., Any]


def plan(kernel: Kernel, hints: Hints = NO_HINTS) -> Plan:
    """The schedule of a kernel; it is right for all values of symbolic sizes, and good for those near `hints`."""
    t = tuning.SM_90
    k = Accesses(kernel, hints)
    if k.loops:
        k = Accesses(_contiguous_last(k, t), hints)
    elif k.sums:
        raise UnsupportedKernel(f"sums over the outer points of {kernel.name} of one value each")
    return scheduled(_first(LOOPS if k.loops else POINTWISE, k, t))


def scheduled(tiles: Tiles) -> Plan:
    """The schedule of a kernel that is cut into tiles."""
    t, k = tuning.SM_90, Accesses(tiles.kernel)
    is_cached = tiles.cached is not None and tiles.cached * tiles.inner >= k.longest
    rereads = tiles.kind == "row" and t.persistent_row < tiles.inner < k.longest and bool(k.reread)
    if tiles.cached is not None:
        rereads = not is_cached
    may_fit = (
        tiles.kind == "row"
        and 1 < tiles.inner <= t.persistent_row
        and any(not isinstance(count, int) for count in k.lengths)
        and k.longest <= tiles.inner
        and not tiles.run
    )
    online = tiles.kind != "tiled" and not (is_cached and not tiles.narrow)
    softmax = softmax_of(tiles.kernel, tiles.inner if online else None)
    stages = [1 if rereads or may_fit else _stages(n, tiles, k, softmax, t) for n in range(len(tiles.kernel.sections))]
    return Plan(
        **vars(tiles),
        num_warps=_first(WARPS, Draft(tiles, k, t, rereads)),
        num_stages=tuple(stages),
        turn_stages=_turn_stages(tiles, k, t),
        vectors=tuple(_vector(section, tiles) for section in tiles.kernel.sections),
        rereads=rereads,
        may_fit=may_fit,
        is_crossed=min(k.directions) > 0,
        softmax=softmax,
    )


def _first(rows: Iterable[Row], *facts: Any) -> Any:
    """What the first row says that applies."""
    return next(value for row in rows if row.applies(*facts) and (value := row.value(*facts)) is not None)


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


# ---- tiles


def _contiguous_last(k: Accesses, t: Tuning) -> Kernel:
    """The kernel with an outer axis as its fastest along which memory runs in loops, if it does not along that one."""
    kernel = k.kernel
    loops = [(section.axes[-1], index) for section in k.loops for index in indices_of(section)]
    along = [
        axis
        for axis in kernel.axes
        if isinstance(axis.size, Expr) or axis.size >= t.least_side
        if any(runs_along(index, axis) and varies(index, inner) for inner, index in loops)
    ]
    if not along or kernel.axes[-1] in along or k.sums:
        return kernel
    return replace(kernel, axes=(*(axis for axis in kernel.axes if axis is not along[-1]), along[-1]))


def _transposed(k: Accesses, t: Tuning) -> Tiles | None:
    """A pointwise kernel with its fastest axis as an inner one, if some access runs along another axis."""
    kernel, hints = k.kernel, k.hints
    *others, fast = kernel.axes
    turned = [
        axis
        for axis in others
        if any(
            (step := ix.steps(index)).get(axis.name) == 1 and step.get(fast.name, 0) not in (0, 1)
            for section in kernel.sections
            for index in indices_of(section)
        )
    ]
    if not turned or min(rough(fast.size, hints), rough(turned[-1].size, hints)) < t.least_side:
        return None
    if rough(fast.size, hints) > t.square * MOST_SECOND_PROGRAMS:
        return None
    made = _with_inner(kernel, fast, (*(axis for axis in others if axis is not turned[-1]), turned[-1]))
    outer, inner = (min(t.square, power_of_two(rough(points_of(part), hints))) for part in (made.axes, (fast,)))
    return Tiles(kernel=made, kind="tiled", outer=outer, inner=inner)


MOST_SECOND_PROGRAMS = 65535
"""The greatest second number of a program."""


def _with_inner(kernel: Kernel, fast: Axis, axes: tuple[Axis, ...]) -> Kernel:
    return replace(kernel, axes=axes, sections=tuple(Section((fast,), s.statements) for s in kernel.sections))


def _rows_with_factors(k: Accesses, t: Tuning) -> Tiles | None:
    """A pointwise kernel with long rows as inner loops, if something is read that is the same for a whole row."""
    *others, fast = k.kernel.axes
    loads = [s.index for s in select(k.kernel.sections, Load)]
    size = rough(fast.size, k.hints)
    if not any(index.terms and not varies(index, fast) for index in loads):
        return None
    if not t.least_long_row <= size <= t.row_tile * MOST_SECOND_PROGRAMS:
        return None
    if isinstance(fast.size, int) and fast.size % t.row_multiple:
        return None
    inner = min(t.row_tile, power_of_two(size))
    made = _with_inner(k.kernel, fast, tuple(others))
    return Tiles(kernel=made, kind="tiled", outer=t.pointwise_tile // inner or 1, inner=inner)


def _coarsened(k: Accesses, t: Tuning) -> Tiles | None:
    """A pointwise kernel some points of which have much in common, if enough programs are left."""
    count = points_of(k.kernel.axes)
    made = coarsened(k.kernel, count // (t.pointwise_tile * t.programs)) if isinstance(count, int) else None
    return None if made is None else Tiles(kernel=made[0], kind="shared", outer=t.pointwise_tile, inner=made[1])


def _flat(k: Accesses, most: int) -> Tiles:
    return Tiles(kernel=k.kernel, outer=min(most, power_of_two(k.outer)))


def _of_few_rows(k: Accesses, t: Tuning) -> Tiles | None:
    """Enough columns that few programs share what they read of the rows, and as long a part of these as is loaded well
    at a time. Where memory runs along the columns, more of these."""
    found = few_rows_of(k.kernel)
    if found is None:
        return None
    loads = [s for s in select(k.loops, Load) if any(varies(s.index, axis) for axis in found.many)]
    columns = t.product_columns * (2 if any(runs_along(s.index, found.many[-1]) for s in loads) else 1)
    lines, many = (rough(points_of(axes), k.hints) for axes in (found.batch, found.many))
    while columns > MOST_ROWS and 2 * lines * -(-many // columns) < t.multiprocessors:
        columns //= 2
    if lines * many * k.inner < t.least_product:
        return None
    if found.form != "half" and 2 * lines * -(-many // columns) < t.multiprocessors:
        return None  # few programs, each of much work
    bytes_ = sum({s.buffer: ITEM_SIZE[s.dtype] * (1 if found.form == "half" else 2) for s in loads}.values())
    inner = min(t.product_depth, power_of_two(t.product_bytes // (columns * bytes_)), power_of_two(k.inner))
    return Tiles(kernel=k.kernel, kind="product", outer=MOST_ROWS * columns, inner=max(inner, MOST_ROWS), rows=found)


def _crosses(k: Accesses, t: Tuning) -> bool:
    """Whether some accesses run along the rows and some across them, of rows and columns of some length."""
    return min(k.directions) > 0 and min(k.outer, k.inner) >= t.least_side


def _is_crossed_whole(k: Accesses, t: Tuning) -> bool:
    rows, columns = k.directions
    return _crosses(k, t) and (columns <= rows or len(k.loops) > 1) and k.inner <= t.persistent_row


def _runs_in_columns(k: Accesses, t: Tuning) -> bool:
    rows, columns = k.directions
    return columns > rows or _crosses(k, t)


def _in_parts(k: Accesses, t: Tuning) -> Tiles:
    """Whole rows, some at a time, by programs each of which goes through all rows of one part."""
    row, crosses = power_of_two(k.inner), _crosses(k, t)
    if row > t.persistent_row and not all(isinstance(count, int) for count in k.lengths):
        raise UnsupportedKernel(f"sums over long rows of symbolic length in {k.kernel.name}")
    part, outer = _part(k), 1
    if any(store in section.statements for store in k.sums for section in k.kernel.sections if not section.axes):
        raise UnsupportedKernel(f"sums over the outer points of {k.kernel.name} of one value each")
    while divides(2 * outer, part):
        if 2 * outer * row > (t.crossing_tile // 2 if crosses and outer < t.least_side else t.turn_tile):
            break
        outer *= 2
    loads = [s.index for s in select(k.kernel.sections, Load)]
    shared = any(index.terms and not varies(index, k.kernel.axes[-1]) for index in loads)
    narrow = 4 * row * (len(k.sums) + len(k.reread) + shared) > t.summed_bytes
    return Tiles(kernel=k.kernel, outer=outer, inner=row, part=part, narrow=narrow)


def _part(k: Accesses) -> Dim:
    """How many outer points, one after the other, each sum of a kernel is of."""
    kernel = k.kernel
    row = AxisAtom(kernel.axes[-1].name)
    parts: set[Dim] = set()
    for store in k.sums:
        atoms = [term.atom for term in store.index.terms if varies(Index(0, (term,)), kernel.axes[-1])]
        match atoms:
            case [FloorDivAtom(Index(0, (Term(1, atom),)), part)] if atom == row and len(kernel.axes) == 1:
                parts.add(part)
            case _:
                raise UnsupportedKernel(f"sums over the outer points of {kernel.name} at {store.index}")
    if len(parts) != 1:
        raise UnsupportedKernel(f"sums over {len(parts)} kinds of parts in {kernel.name}")
    return parts.pop()


def _across(k: Accesses, t: Tuning) -> Tiles:
    """Whole rows, some accesses of which run across them: so many at a time that these are of whole sectors of memory,
    if registers hold them and enough programs are left."""
    row = power_of_two(k.inner)
    several = min(t.square, max(t.least_side, t.column_tile // row), t.crossing_tile // row)
    while several > 1 and 2 * k.outer < several * t.programs:
        several //= 2
    return Tiles(kernel=k.kernel, outer=several, inner=row)


def _in_columns(k: Accesses, t: Tuning) -> Tiles:
    """As many columns as are loaded well, and fewer where these are few."""
    width, in_one_warp = min(t.square, power_of_two(k.outer)), "logaddexp" in k.scans
    while width > t.least_side // (2 if in_one_warp else 1) and -(-k.outer // width) < t.programs:
        width //= 2
    long = WARP if in_one_warp else t.column_tile // width
    if k.narrowest <= 2 and k.has_positions:
        long //= 2  # a few warps, which do not wait for each other
    inner = min(power_of_two(k.inner), long) if k.inner <= t.square else _unmasked(k, long, long // 2)
    return Tiles(kernel=k.kernel, kind="column", outer=width, inner=inner)


def _goes_in_steps(k: Accesses, t: Tuning) -> bool:
    """Whether a kernel only scans columns, and these are enough to keep the machine busy."""
    loops = [loop.statements for loop in k.loops]
    if any(isinstance(s, Reduce) for loop in loops for s in loop) or any(parted(loop) is None for loop in loops):
        return False
    return all(any(isinstance(s, Scan) for s in loop) for loop in loops) and k.outer >= t.busy_columns


def _in_steps(k: Accesses, t: Tuning) -> Tiles:
    """One program goes along each column: as many lanes as there is work for, and as few columns as are loaded well;
    twice as many where there are enough."""
    steps = t.exponential_steps if "logaddexp" in k.scans else t.steps
    width = WARP if k.outer < 2 * WARP * t.programs else 2 * WARP
    thread = _columns_of_a_thread(k, t)
    elements = WARP * 8 * thread if width > WARP else t.step_bytes * thread // (8 * t.steps * k.narrowest)
    if steps > t.steps:
        elements = WARP * 16 * thread
    lanes = min(elements // width, power_of_two(-(-k.inner // steps)))
    wide = elements // lanes
    while wide > width and k.outer < wide * t.programs:
        wide //= 2
    return Tiles(kernel=k.kernel, kind="column", outer=wide, inner=lanes, steps=steps)


def _columns_of_a_thread(k: Accesses, t: Tuning) -> int:
    """How many columns of a step a thread has: the more, the less scans keep of each point."""
    if "logaddexp" in k.scans:
        return t.exponential_columns
    return t.one_scan_columns if len(select(k.kernel.sections, Scan)) == 1 else t.several_scans_columns


def _in_runs(k: Accesses, t: Tuning) -> Tiles | None:
    """Tiles within runs along the fastest inner axis, if something is read that is the same for a whole run (a factor
    for each channel of a group): it would be read, and its place computed, for each point. Rows of few tiles are
    unrolled, and stay in registers as far as these go."""
    run = next((s.axes[-1].size for s in k.loops for index in indices_of(s) if _is_of_runs(index, s)), 0)
    if not isinstance(run, int) or run == 0 or k.scans or k.has_positions or k.has_exponentials:
        return None
    whole = power_of_two(run) if run <= t.run_tiles[0] else 0
    tile = whole or next((tile for tile in t.run_tiles if run % tile == 0), 0)
    if tile < t.least_run or run < t.least_fill * tile:
        return None
    made = replace(k.kernel, sections=tuple(_of_runs(section, run) for section in k.kernel.sections))
    held, tiles = len(Accesses(made).reread), -(-run // tile) * (k.inner // run)
    if not all(isinstance(count, int) for count in k.lengths) or not held or tiles > t.most_unrolled:
        return Tiles(kernel=made, inner=tile, run=run)
    return Tiles(kernel=made, inner=tile, cached=min(tiles, t.cached_run // (_run_elements(tile, t) * held)), run=run)


def _is_of_runs(index: Index, section: Section) -> bool:
    """Whether an index is another for each run along the fastest axis of a section, and the same in all of it."""
    *slow, fast = section.axes
    return any(varies(index, axis) for axis in slow) and not varies(index, fast)


def _run_elements(tile: int, t: Tuning) -> int:
    """Elements that a thread has of a tile of a run; twice as many in a loop."""
    return 4 if tile < t.pointwise_tile else 8


def _of_runs(section: Section, run: int) -> Section:
    """The section with runs of so many points as its fastest axis, if its only one consists of these."""
    if len(section.axes) != 1 or not isinstance(section.axes[0].size, int) or section.axes[0].size % run:
        return section
    (axis,) = section.axes
    statements = []
    for statement in section.statements:
        if any(fixed_step(index, axis) is None for index in indices(statement)):
            return section
        statements.append(map_indices(statement, lambda index: _by_run(index, axis, run)))
    return Section((Axis(f"{axis.name}_run", axis.size // run), Axis(axis.name, run)), tuple(statements))


def _by_run(index: Index, axis: Axis, run: int) -> Index:
    """The index where `axis` is the place in a run of so many points, and another axis counts these."""
    step, rest = fixed_step(index, axis), ix.inline(index, {axis.name: ix.ZERO})
    moving = (Term(step * run, AxisAtom(f"{axis.name}_run")), Term(step, AxisAtom(axis.name))) if step else ()
    return Index(rest.constant, (*rest.terms, *moving))


def _only_scans(k: Accesses) -> bool:
    """Whether a kernel does nothing but scan rows, in one loop."""
    others = [s for section in k.kernel.sections if not section.axes for s in section.statements]
    return len(k.loops) == 1 and bool(k.scans) and not k.reductions and not any(isinstance(s, Store) for s in others)


def _chained(k: Accesses, t: Tuning) -> Tiles:
    several = 1 if _columns_of_a_thread(k, t) == t.one_scan_columns else 2
    return Tiles(kernel=k.kernel, inner=t.chain_tile // several, chained=True)


def _only_sums_halves(k: Accesses, t: Tuning) -> bool:
    """Whether rows of half precision that fill a tile are summed, once: all of a row is then in flight at a time."""
    fills = all(isinstance(n, int) for n in k.lengths) and k.inner >= t.least_fill * power_of_two(k.inner)
    once = len(k.loops) == 1 and not k.scans and set(k.reductions) == {"sum"}
    return fills and once and k.narrowest <= 2 and k.inner <= t.summed_row


def _multiplies_bytes(k: Accesses, t: Tuning) -> bool:
    """Whether rows of bytes, which may be numbers of four bits in pairs, are multiplied by one that all have."""
    is_long = all(isinstance(count, int) and count > t.byte_tile for count in k.lengths)
    return is_long and k.is_product and k.narrowest == 1


def _of_bytes(k: Accesses, t: Tuning) -> Tiles:
    return Tiles(kernel=k.kernel, inner=_unmasked(k, t.byte_tile, t.byte_tile // 2), of_bytes=True)


def _persistent(k: Accesses, t: Tuning) -> Tiles:
    """Whole rows, several where they are short."""
    row = power_of_two(k.inner)
    return Tiles(kernel=k.kernel, outer=max(1, min(power_of_two(k.outer), t.pointwise_tile // row)), inner=row)


def _is_reread(k: Accesses) -> bool:
    """Whether several loops read the same of a long row of known length."""
    return bool(k.reread) and all(isinstance(count, int) for count in k.lengths)


def _fits_registers(k: Accesses, t: Tuning) -> bool:
    """Whether registers hold a row as one tile. Rows of half precision, of which one takes all registers and half the
    time of another, are no longer than half of that."""
    row = power_of_two(k.inner)
    most = t.register_row if k.narrowest > 2 or row <= t.register_row // 2 else 0
    return _is_reread(k) and len(k.reread) * row <= most


def _in_registers(k: Accesses, t: Tuning) -> Tiles:
    """A row as one tile; one that would leave much of that empty in eighths."""
    whole = power_of_two(k.inner)
    if k.narrowest > 2 or k.inner > t.least_fill * whole:
        return Tiles(kernel=k.kernel, inner=whole)
    return Tiles(kernel=k.kernel, inner=whole // 8, cached=-(-k.inner // (whole // 8)))


def _unrolled(k: Accesses, t: Tuning) -> Tiles | None:
    """Long rows, of which more is loaded at a time than a loop would. What fits stays in registers; the rest is read
    again, from the cache while few programs are at work."""
    if k.inner > t.most_unrolled * t.unrolled_tile:
        return None
    bytes_ = sum(k.reread)
    tile = t.unrolled_moments_tile if k.has_moments else t.unrolled_tile
    tiles, all_registers = -(-k.inner // tile), 8 * t.registers // tile
    cut = Tiles(kernel=k.kernel, inner=tile)
    if k.narrowest > 2:
        if bytes_ * k.inner <= t.cached_row:
            return dataclasses.replace(cut, cached=tiles)
        if k.has_moments:
            return dataclasses.replace(cut, cached=t.cached_moments_part // (bytes_ * tile))
        return dataclasses.replace(cut, cached=t.cached_part // (bytes_ * tile), registers=all_registers)
    if k.has_moments and bytes_ * k.inner <= t.cached_narrow_row:
        return dataclasses.replace(cut, cached=tiles, narrow=True, registers=all_registers // 2)
    tile = t.unrolled_tile
    return Tiles(kernel=k.kernel, inner=tile, cached=0, registers=4 * t.registers // tile if bytes_ == 2 else 0)


def _reread(k: Accesses, t: Tuning) -> Tiles | None:
    """Large tiles: few programs are then at work, and what they read again is still in the cache."""
    most = t.reread_tiles[0] // len(k.reread)
    tiles = [tile for tile in t.reread_tiles if tile < k.inner and tile <= most]
    return Tiles(kernel=k.kernel, inner=min(tiles, key=lambda tile: -(-k.inner // tile) * tile)) if tiles else None


def _looped(k: Accesses, t: Tuning) -> Tiles:
    return Tiles(kernel=k.kernel, inner=_unmasked(k, t.scan_tile if k.scans else t.loop_tile, t.least_loop_tile))


def _unmasked(k: Accesses, most: int, least: int) -> int:
    """The greatest tile of which the loops consist, so that none needs masks; the greatest of all if there is none."""
    tile = most
    while tile >= least:
        if all(isinstance(length, int) and length % tile == 0 for length in k.lengths):
            return tile
        tile //= 2
    return most


POINTWISE = (
    Row("transposed accesses", lambda k, t: k.is_pointwise and len(k.kernel.axes) > 1, _transposed),
    Row("rows with factors", lambda k, t: k.is_pointwise and len(k.kernel.axes) > 1, _rows_with_factors),
    Row("thread coarsening", lambda k, t: True, _coarsened),
    Row("few points", lambda k, t: k.outer <= t.small_tile * t.programs, lambda k, t: _flat(k, t.small_tile)),
    Row("flat", lambda k, t: True, lambda k, t: _flat(k, t.pointwise_tile)),
)
"""How kernels without inner loops are cut."""

LOOPS = (
    Row("products of few rows", lambda k, t: True, _of_few_rows),
    Row("sums over rows", lambda k, t: k.sums, _in_parts),
    Row("whole rows that are crossed", _is_crossed_whole, _across),
    Row("scans of columns, in steps", lambda k, t: _runs_in_columns(k, t) and _goes_in_steps(k, t), _in_steps),
    Row("columns", _runs_in_columns, _in_columns),
    Row("runs", lambda k, t: True, _in_runs),
    Row("look-back", lambda k, t: k.outer < t.few_rows and k.inner >= t.chained_row and _only_scans(k), _chained),
    Row("products of bytes", _multiplies_bytes, _of_bytes),
    Row("persistent rows", lambda k, t: k.inner <= t.persistent_row, _persistent),
    Row("sums of half precision", _only_sums_halves, lambda k, t: Tiles(kernel=k.kernel, inner=power_of_two(k.inner))),
    Row("rows in registers", _fits_registers, _in_registers),
    Row("unrolled rows", lambda k, t: _is_reread(k) and (k.has_moments or k.has_exponentials), _unrolled),
    Row("rows that are read again", lambda k, t: _is_reread(k), _reread),
    Row("loops", lambda k, t: True, _looped),
)
"""How kernels with inner loops are cut."""


# ---- warps


class Draft(NamedTuple):
    """A schedule of which tiles are known, what they are of, and whether rows are read again."""

    tiles: Tiles
    of: Accesses
    t: Tuning
    rereads: bool

    @property
    def is_row(self) -> bool:
        return self.tiles.kind == "row"

    @property
    def is_wide(self) -> bool:
        """Whether a tile is of rows, and of no reduction in half precision."""
        return self.is_row and (self.tiles.inner == 1 or self.of.narrowest > 2)

    @property
    def has_short_rows(self) -> bool:
        """Whether a row of half precision is short enough for one warp, and at hand as a whole; and there are many."""
        rows, tile = points_of(self.tiles.kernel.axes), self.tiles.inner
        is_short = self.tiles.outer == 1 and self.of.longest <= tile <= self.t.pointwise_tile
        return self.is_row and not self.is_wide and is_short and (isinstance(rows, Expr) or rows >= self.t.programs)

    @property
    def scans_long(self) -> bool:
        """Whether elements of 64 bits are scanned."""
        return any(ITEM_SIZE[s.dtype] == 8 for s in select(self.tiles.kernel.sections, Scan))

    def warps(self, elements: int, least: int = 1, most: int = 16) -> int:
        """So many elements a thread."""
        return max(least, min(most, self.tiles.outer * self.tiles.inner // (WARP * elements)))

    def run_elements(self) -> int:
        return _run_elements(self.tiles.inner, self.t) * (1 if self.tiles.cached is not None else 2)


ELEMENTS = (
    Row("columns of exponentials", lambda d: d.tiles.kind == "column" and "logaddexp" in d.of.scans, lambda d: 8),
    Row("scans of more than sums", lambda d: d.is_row and d.of.scans - {"sum", "prod"}, lambda d: 32),
    Row("short rows of half precision", lambda d: d.has_short_rows, lambda d: 32),
    Row("one vector of float32, or two", lambda d: d.is_wide and not d.of.scans, lambda d: 8),
    Row("others", lambda d: True, lambda d: 16),
)
"""Elements of a tile that a thread has; half as many of kernels of many accesses: machine code is as long as both, and
takes long to make."""

WARPS = (
    Row("products of few rows", lambda d: d.tiles.kind == "product", lambda d: max(2, d.tiles.columns // 16)),
    Row("products of bytes", lambda d: d.tiles.of_bytes, lambda d: d.warps(4)),
    Row("sums over rows", lambda d: d.of.sums, lambda d: d.warps(16, 4, 8 if d.tiles.narrow else 16)),
    Row("runs", lambda d: d.tiles.run, lambda d: d.warps(d.run_elements(), most=64)),
    Row("unrolled rows", lambda d: d.tiles.cached is not None, lambda d: d.warps(8, most=64)),
    Row(
        "few points",
        lambda d: d.of.is_pointwise and d.is_row and d.tiles.inner == 1 and d.tiles.outer <= d.t.small_tile,
        lambda d: d.warps(1),
    ),
    Row("coarsened", lambda d: d.tiles.kind == "shared", lambda d: d.warps(8 * d.tiles.inner)),
    Row("look-back of 64 bits", lambda d: d.tiles.chained and d.scans_long, lambda d: 8),
    Row("look-back", lambda d: d.tiles.chained, lambda d: 4),
    Row("scans in steps", lambda d: d.tiles.steps > 1, lambda d: d.warps(_columns_of_a_thread(d.of, d.t))),
    Row(
        "rows that are read again, of less",
        lambda d: d.rereads and d.of.longest <= d.t.register_row and d.tiles.inner < max(d.t.reread_tiles),
        lambda d: 16,
    ),
    Row("rows that are read again", lambda d: d.rereads, lambda d: 32),
    Row(
        "rows in registers",
        lambda d: d.tiles.inner > max(d.t.persistent_row, d.t.loop_tile),
        lambda d: 16 if len(d.of.reread) * d.tiles.inner <= d.t.register_row // 2 else 32,
    ),
    Row("others", lambda d: True, lambda d: d.warps(_first(ELEMENTS, d) // (1 + (d.of.count > d.t.many_accesses)))),
)
"""Warps of a program."""


# ---- loads ahead

AHEAD = (
    Row("narrow positions", lambda kinds, p, narrow: narrow and kinds & {"argmax", "argmin"}, lambda *_: 5),
    Row("narrow moments", lambda kinds, p, narrow: narrow and ("welford" in kinds or p.steps > 1), lambda *_: 3),
    Row("others", lambda *_: True, lambda *_: 2),
)
"""Tiles of a loop that are in flight while one is computed."""


def _stages(number: int, p: Tiles, k: Accesses, softmax: Softmax, t: Tuning) -> int:
    """Without loads ahead, few bytes are in flight (a thread loads 16 at a time), least of narrow elements. Positions
    and softmax along rows take longer from shared memory than from registers. Of two tiles of columns, none is ahead.
    Tiles that may be a whole row, or are read again, leave no time to be ahead; factors of parts of a row would go
    through shared memory one by one. In steps, a multiprocessor has few programs."""
    section = p.kernel.sections[number]
    if p.kind == "product":
        return t.product_stages
    if p.of_bytes:
        return 1
    kinds = {s.reduction for s in section.statements if isinstance(s, Reduce)}
    if p.kind == "row" and (kinds & {"argmax", "argmin"} or any(one.maximum == number for one in softmax.online)):
        return 1
    ahead, moved, count = _first(AHEAD, kinds, p, k.narrowest <= 2), 0, points_of(section.axes)
    if p.kind == "column" and isinstance(count, int) and count <= 2 * p.inner * p.steps:
        return 1
    for load in select((section,), Load):
        if any(varies(load.index, axis) for axis in (section.axes[-1:] if p.run else section.axes)):
            if p.kind == "row" and ix.steps(load.index).get(section.axes[-1].name) != 1:
                return 1
            wide = any(varies(load.index, axis) for axis in p.kernel.axes)
            moved += ITEM_SIZE[load.dtype] * p.inner * p.steps * (p.outer if wide else 1)
    room = t.bytes_in_flight if p.steps == 1 else t.turn_bytes_in_flight
    return ahead + 1 if 0 < ahead * moved <= room else 1


def _turn_stages(p: Tiles, k: Accesses, t: Tuning) -> int:
    """As many tiles as shared memory holds, three at most."""
    if p.part == 0:
        return 1
    moved = {name: size for section in p.kernel.sections for name, size in k.of_points(section, section.axes).items()}
    tile = sum(moved.values()) * p.outer * p.inner
    stages = max(1, min(3, 1 + t.turn_bytes_in_flight // max(tile, 1)))
    return min(stages, p.part // p.outer) if isinstance(p.part, int) else stages


def _vector(section: Section, p: Tiles) -> int:
    narrowest = min((ITEM_SIZE[s.dtype] for s in select((section,), Load)), default=VECTOR_BYTES)
    return min(VECTOR_BYTES // narrowest, p.inner) if p.kind == "row" else 1


MEASURED_BY = {
    tuning.POINTWISE: "flat; others",
    tuning.TRANSPOSED: "transposed accesses; whole rows that are crossed",
    tuning.CHANNELS: "rows with factors; thread coarsening; coarsened",
    tuning.COLUMNS: "columns; narrow moments; others",
    tuning.NORMS: "sums over rows; rows in registers; unrolled rows",
    tuning.SOFTMAX: "persistent rows; rows that are read again; rows that are read again, of less; "
    "short rows of half precision; one vector of float32, or two",
    tuning.DECODING: "few points; sums of half precision; products of few rows; products of bytes",
    tuning.SUMS_AND_SCANS: "scans of columns, in steps; scans in steps; runs; look-back; look-back of 64 bits; loops; "
    "columns of exponentials; scans of more than sums; narrow positions",
}
"""The benchmark by which the rows of the tables were chosen."""
