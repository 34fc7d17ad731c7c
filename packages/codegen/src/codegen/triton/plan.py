"""How a loop kernel is cut into tiles, from its access patterns.

row      the inner loop runs along memory: whole rows where they fit in a tile, else a loop of tiles
column   the outer loop does: a few inner points of many outer ones at a time
tiled    no inner loop: a two-dimensional grid, where memory runs along one axis here, along another there, or where
         what is read for a whole row (a factor for each channel) would be read and computed for each of its points
shared   no inner loop: some points of one axis beside each other, which have in common much of what is computed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from codegen.errors import UnsupportedKernel
from codegen.triton.accesses import (
    directions,
    finds_positions,
    fixed_step,
    has_exponentials,
    has_fixed_length,
    has_moments,
    held_items,
    indices_of,
    is_of_runs,
    kinds_of_scans,
    narrowest_item,
    points,
    runs_along,
    scans_long,
    summed,
    varies,
)
from codegen.triton.beside import beside
from codegen.triton.scans import parted
from stagewire import index as ix
from stagewire.expr import Dim, Expr
from stagewire.loop import (
    Axis,
    AxisAtom,
    FloorDivAtom,
    Index,
    Kernel,
    Load,
    Reduce,
    Scan,
    Section,
    Store,
    Term,
)
from stagewire.sizes import NO_HINTS, Hints, divides, rough
from stagewire.statements import indices, map_indices, select, statements_of
from stagewire.types import ITEM_SIZE

PERSISTENT_LIMIT = 4096
"""Rows up to this many elements are reduced in one tile."""

WHOLE_LIMIT = 32768
"""Up to so many elements that several loops over a row read stay in the registers of one program, as one tile. Rows of
half precision, of which one takes all registers and half the time of another, are no longer than half of that, unless
means and deviations are wanted."""

LOOP_TILE, SCAN_TILE, LEAST_TILE = 2048, 4096, 1024
AGAIN_TILES = (16384, 8192)
"""Tiles of rows that are longer than that, and elements of such tiles of all operands: few programs are then in work at
once, and what they read again is still in the cache."""

WRITTEN_TILE, FEW_WARPS_TILE, WRITTEN_TILES = 4096, 2048, 16
"""Elements of the tiles of rows whose loops are written out, and how many tiles that are at most."""

KEPT, KEPT_WIDE = 64 * 1024, 208 * 1024
"""Bytes of a row that stays in registers where two programs share a multiprocessor, and where there is one."""

KEPT_PART, KEPT_PART_OF_MOMENTS = 128 * 1024, 160 * 1024
"""Bytes of longer rows that do, beside what is loaded of the rest; where exponentials are computed, and where not."""

FULL = 0.7
"""How much of a tile of half precision a row has to fill to be one; and a run of any tile."""

RUN_TILES, LEAST_RUN = (4096, 2048, 1024), 256
"""Elements of the tiles of long runs along the fastest of several inner axes, and of the least that is a whole run."""

KEPT_BY_A_THREAD = 64
"""Elements of all tiles of runs that are written out which a thread keeps."""

REGISTERS = 64 * 1024
"""Of a multiprocessor."""

SUMMED = 192 * 1024
"""Bytes of rows and of sums over rows in full precision which the registers of a program hold."""

TURN_TILE = 2048
"""Elements of a tile of short rows, where programs take tiles in turn."""

POINTWISE_TILE = 1024
SQUARE = 64
"""Sides of the tiles of transposed accesses, and the widest of columns."""

LEAST_SIDE, CROSSING_TILE = 16, 16384
"""Whole rows, some of whose accesses run across them, are so many at a time: that is a sector of memory across. And
elements of such a tile at most."""

COLUMN_TILE = 2048
"""Elements of a tile of columns that are too long for one."""

WARP = 32
LOADED = 16
"""Threads, and bytes that one of them loads at once."""

STEPS, EXPONENTIAL_STEPS, STEP_TILE = 8, 16, 32 * 1024
"""Points of a column that a lane scans one after the other (of sums of exponentials, of which lanes take long to be
combined), and bytes of those that all lanes of a program load."""

SIDE_BY_SIDE = (2, 4, 8)
"""Columns of a lane that a thread has in steps: where sums of exponentials are scanned, where there are several scans,
and where there is one."""

FEW_ROWS, CHAINED_ROW, CHAIN_TILE = 128, 32768, 8192
"""Rows that are so few and so long are scanned by several programs each, of which each takes so many elements; half as
many where there is more than one scan of one value each."""

COLUMNS = 96 * WARP
"""So many columns are enough to keep the machine busy where each is scanned by one program."""

ON_THEIR_WAY = 48 * 1024
"""Bytes that a program may have on their way through shared memory; twice that would leave room for few programs."""

TURNS_ON_THEIR_WAY = 160 * 1024
"""The same where a program is to be the only one of a multiprocessor."""

LONG_ROW, ROW_TILE = 512, 2048
"""Pointwise rows from this many elements have tiles of their own, of up to that many."""

ACCESSES = 32
"""From more of them on, threads have half as many elements: machine code is as long as both, and takes long to make."""

MANY = 264
"""Programs that keep a large GPU busy: two for each multiprocessor of an H200."""


@dataclass(frozen=True)
class Plan:
    """`kernel`, perhaps with an outer axis made an inner one. outer, inner: XBLOCK and RBLOCK, powers of two.

    steps: of scans of columns: how many points that follow each other a lane of a tile has. part: of kernels that store
    sums over outer points: of how many each is. A program computes these tile by tile.

    kept: of loops that are written out tile by tile: of how many tiles what is loaded stays in registers, where later
    loops load the same. narrow: whether it stays in 16 bits. registers: of a thread at most; 0: any number.
    chained: whether each tile of a row is a program's own: see `chains.py`. run: where no tile goes from one point of
    the slower inner axes to another, how many the fastest one has: what does not vary along it is one number in a tile.
    """

    kernel: Kernel
    kind: Literal["row", "column", "tiled", "shared"]
    outer: int
    inner: int
    steps: int = 1
    part: Dim = 0
    kept: int | None = None
    narrow: bool = False
    registers: int = 0
    chained: bool = False
    run: int = 0

    @property
    def grid(self) -> tuple[Dim, ...]:
        """The numbers of programs."""
        each = self.part if self.part != 0 else self.outer
        columns = (points(self.kernel.axes) + each - 1) // each
        if self.kind != "tiled":
            return (columns * self.parts,)
        return (columns, (points(self.kernel.sections[0].axes) + self.inner - 1) // self.inner)

    @property
    def parts(self) -> Dim:
        """How many programs share a row."""
        return (points(self.loops[0]) + self.inner - 1) // self.inner if self.chained else 1

    @property
    def loops(self) -> list[tuple[Axis, ...]]:
        """The axes of the inner loops."""
        return [section.axes for section in self.kernel.sections if section.axes]

    @property
    def has_short_rows(self) -> bool:
        """Whether a row is short enough for one warp, and at hand as a whole; and there are many."""
        counts, rows = [points(axes) for axes in self.loops], points(self.kernel.axes)
        fits = self.inner <= POINTWISE_TILE and all(isinstance(n, Expr) or n <= self.inner for n in counts)
        return fits and (isinstance(rows, Expr) or rows >= MANY)

    @property
    def is_crossed(self) -> bool:
        """Whether memory runs along the loops here, and across them there."""
        return min(directions(self.kernel)) > 0

    @property
    def reads_again(self) -> bool:
        """Whether several loops of large tiles go over rows that are too long to be kept."""
        longest = max((count for count in map(points, self.loops) if isinstance(count, int)), default=0)
        if self.kept is not None:
            return self.kept * self.inner < longest
        return self.kind == "row" and PERSISTENT_LIMIT < self.inner < longest and bool(held_items(self.kernel))

    @property
    def keeps_rows(self) -> bool:
        """Whether all of a row stays in registers in full precision, tile by tile."""
        longest = max((count for count in map(points, self.loops) if isinstance(count, int)), default=0)
        return self.kept is not None and self.kept * self.inner >= longest and not self.narrow

    @property
    def may_fit(self) -> bool:
        """Whether rows of symbolic length are taken as a whole where they are no longer than a tile: they are not read
        again then, nor are lanes combined of which each has met one point."""
        counts = [points(axes) for axes in self.loops]
        known = [count for count in counts if isinstance(count, int)]
        fits = len(known) < len(counts) and all(count <= self.inner for count in known)
        return self.kind == "row" and 1 < self.inner <= PERSISTENT_LIMIT and fits and not self.run

    @property
    def warps(self) -> int:
        """About eight elements a thread, between one warp and sixteen; sixteen elements in tiles that are not of one
        row's kind, or where rows of a narrow dtype are reduced (short ones by one warp), or where there are sums that
        run along a row: each warp goes through the totals of all others. Where that takes more than an addition there
        are thirty-two; so many at most of long rows that stay in registers. Exponentials along columns have few rows,
        of few columns, so that one warp scans them. Kernels of many accesses have half as many elements a thread. In
        steps, it is eight elements a step; fewer where more of each is kept."""
        wide = self.kind == "row" and (self.inner == 1 or narrowest_item(self.kernel) > 2)
        scans = kinds_of_scans(self.kernel)
        if summed(self.kernel):
            return max(4, min(8 if self.narrow else 16, self.outer * self.inner // 512))
        if self.run:
            return max(1, self.inner // (WARP * _in_run(self.inner) * (1 if self.kept is not None else 2)))
        if self.kept is not None:
            return max(1, self.inner // 256)
        if self.kind == "shared":
            return max(1, self.outer // (WARP * 8))
        if self.chained:
            return 8 if scans_long(self.kernel) else 4
        if self.steps > 1:
            return max(1, min(16, self.outer * self.inner // (WARP * _side_by_side(self.kernel))))
        if self.reads_again:
            longest = max(count for count in map(points, self.loops) if isinstance(count, int))
            return 16 if longest <= WHOLE_LIMIT and self.inner < max(AGAIN_TILES) else 32
        if self.inner > max(PERSISTENT_LIMIT, LOOP_TILE):
            return 16 if len(held_items(self.kernel)) * self.inner <= WHOLE_LIMIT // 2 else 32
        elements = 8 if wide and not scans else 16
        if self.kind == "row" and not wide and self.outer == 1 and self.has_short_rows:
            elements = 32
        if self.kind == "row" and scans - {"sum", "prod"}:
            elements = 32
        if self.kind == "column" and "logaddexp" in scans:
            elements = 8
        if sum(len(list(indices_of(section))) for section in self.kernel.sections) > ACCESSES:
            elements //= 2
        return max(1, min(16, self.outer * self.inner // (32 * elements)))

    def stages(self, section: Section) -> int:
        """How many tiles of a loop over the section are in work at once: while one is computed, the next two are on
        their way. Without, few bytes are (a thread loads 16 at a time), least of narrow elements. Positions along
        rows take so many instructions that what goes through shared memory takes longer; means and deviations of narrow
        elements overlap with more, positions along columns with most. Of two tiles of columns, none is ahead. Tiles
        that may be a whole row, or are read again, leave no time to be ahead; factors of parts of a row would go
        through shared memory one by one. In steps, a multiprocessor has few programs."""
        kinds = {s.reduction for s in section.statements if isinstance(s, Reduce)}
        if (self.kind == "row" and kinds & {"argmax", "argmin"}) or self.may_fit or self.reads_again:
            return 1
        moved, ahead, narrow = 0, 2, narrowest_item(self.kernel) <= 2
        if narrow and ("welford" in kinds or self.steps > 1):
            ahead = 3
        if narrow and kinds & {"argmax", "argmin"}:
            ahead = 5
        count = points(section.axes)
        if self.kind == "column" and isinstance(count, int) and count <= 2 * self.inner * self.steps:
            return 1
        for load in (s for s in section.statements if isinstance(s, Load)):
            if any(varies(load.index, axis) for axis in (section.axes[-1:] if self.run else section.axes)):
                if self.kind == "row" and ix.steps(load.index).get(section.axes[-1].name) != 1:
                    return 1
                wide = any(varies(load.index, axis) for axis in self.kernel.axes)
                moved += ITEM_SIZE[load.dtype] * self.inner * self.steps * (self.outer if wide else 1)
        room = ON_THEIR_WAY if self.steps == 1 else TURNS_ON_THEIR_WAY
        return ahead + 1 if 0 < ahead * moved <= room else 1

    @property
    def turn_stages(self) -> int:
        """How many tiles of those that a program computes in turn are in work at once, for which shared memory is."""
        moved = {
            s.buffer: ITEM_SIZE[s.dtype]
            for section in self.kernel.sections
            for s in select((section,), Load)
            if all(any(varies(s.index, a) for a in way) for way in (section.axes, self.kernel.axes))
        }
        tile = sum(moved.values()) * self.outer * self.inner
        stages = max(1, min(3, 1 + TURNS_ON_THEIR_WAY // max(tile, 1)))
        return min(stages, self.part // self.outer) if isinstance(self.part, int) else stages

    def neighbours(self, section: Section) -> int:
        """How many elements of a row a thread loads at once."""
        narrowest = min((ITEM_SIZE[s.dtype] for s in section.statements if isinstance(s, Load)), default=LOADED)
        return min(LOADED // narrowest, self.inner) if self.kind == "row" else 1


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def plan(kernel: Kernel, hints: Hints = NO_HINTS) -> Plan:
    """The tiles of a kernel; they are right for all values of symbolic sizes, and good for those near `hints`."""
    outer = rough(points(kernel.axes), hints)
    inner = max((rough(points(section.axes), hints) for section in kernel.sections if section.axes), default=0)
    if not any(section.axes for section in kernel.sections):
        flat = Plan(kernel, "row", min(POINTWISE_TILE, power_of_two(outer)), 1)
        return _tiled(kernel, hints) or _rows(kernel, hints) or _shared(kernel) or flat
    kernel, loops = _contiguous_last(kernel), [section for section in kernel.sections if section.axes]
    rows, columns = directions(kernel)
    crosses = min(rows, columns) > 0 and min(outer, inner) >= LEAST_SIDE
    if summed(kernel):
        return _in_parts(kernel, power_of_two(inner), crosses)
    if crosses and (columns <= rows or len(loops) > 1) and inner <= PERSISTENT_LIMIT:
        return _across(kernel, outer, power_of_two(inner))
    if columns > rows or crosses:
        if _goes_in_steps(kernel, outer):
            return _in_steps(kernel, outer, inner)
        return _in_columns(kernel, outer, inner)
    runs = _in_runs(kernel, inner)
    if runs is not None:
        return runs
    if outer < FEW_ROWS and inner >= CHAINED_ROW and _is_chained(kernel):
        scans_one = _side_by_side(kernel) == max(SIDE_BY_SIDE)
        return Plan(kernel, "row", 1, CHAIN_TILE if scans_one else CHAIN_TILE // 2, chained=True)
    if inner <= PERSISTENT_LIMIT:
        row = power_of_two(inner)
        return Plan(kernel, "row", max(1, min(power_of_two(outer), POINTWISE_TILE // row)), row)
    if held_items(kernel) and all(has_fixed_length(s) for s in kernel.sections):
        row = power_of_two(inner)
        wide = narrowest_item(kernel) > 2
        if len(held_items(kernel)) * row <= (WHOLE_LIMIT if wide or row <= WHOLE_LIMIT // 2 else 0):
            if wide or inner > FULL * row:
                return Plan(kernel, "row", 1, row)
            return Plan(kernel, "row", 1, row // 8, kept=-(-inner // (row // 8)))
        if inner <= WRITTEN_TILES * WRITTEN_TILE and (has_moments(kernel) or has_exponentials(kernel)):
            return _written_out(kernel, inner)
        tiles = [tile for tile in AGAIN_TILES if tile < inner and tile * len(held_items(kernel)) <= AGAIN_TILES[0]]
        if tiles:
            return Plan(kernel, "row", 1, min(tiles, key=lambda tile: -(-inner // tile) * tile))
    return Plan(kernel, "row", 1, _fitting(kernel, SCAN_TILE if kinds_of_scans(kernel) else LOOP_TILE, LEAST_TILE))


def _across(kernel: Kernel, outer: int, row: int) -> Plan:
    """Whole rows, some accesses of which run across them: so many at a time that these are of whole sectors of memory,
    if registers hold them and enough programs are left."""
    several = min(SQUARE, max(LEAST_SIDE, COLUMN_TILE // row), CROSSING_TILE // row)
    while several > 1 and 2 * outer < several * MANY:
        several //= 2
    return Plan(kernel, "row", several, row)


def _in_columns(kernel: Kernel, outer: int, inner: int) -> Plan:
    """As many columns as are loaded well, and fewer where these are few."""
    width, in_one_warp = min(SQUARE, power_of_two(outer)), "logaddexp" in kinds_of_scans(kernel)
    while width > (8 if in_one_warp else 16) and -(-outer // width) < MANY:
        width //= 2
    long = WARP if in_one_warp else COLUMN_TILE // width
    if narrowest_item(kernel) <= 2 and finds_positions(kernel):
        long //= 2  # a few warps, which do not wait for each other
    fitting = _fitting(kernel, long, long // 2)
    return Plan(kernel, "column", width, min(power_of_two(inner), long) if inner <= SQUARE else fitting)


def _in_parts(kernel: Kernel, row: int, crosses: bool) -> Plan:
    """Whole rows, some at a time, by programs each of which goes through all rows of one part."""
    if row > PERSISTENT_LIMIT and not all(has_fixed_length(section) for section in kernel.sections):
        raise UnsupportedKernel(f"sums over long rows of symbolic length in {kernel.name}")
    part, outer = _part(kernel), 1
    while divides(2 * outer, part):
        if 2 * outer * row > (CROSSING_TILE // 2 if crosses and outer < LEAST_SIDE else TURN_TILE):
            break
        outer *= 2
    loads = [s.index for s in select(kernel.sections, Load)]
    shared = any(index.terms and not varies(index, kernel.axes[-1]) for index in loads)
    sums = sum(isinstance(s, Store) and s.mode == "sum" for s in statements_of(kernel))
    narrow = 4 * row * (sums + len(held_items(kernel)) + shared) > SUMMED
    return Plan(kernel, "row", outer, row, part=part, narrow=narrow)


def _written_out(kernel: Kernel, inner: int) -> Plan:
    """Long rows, of which more is loaded at a time than a loop would. What fits stays in registers; the rest is read
    again, from the cache while few programs are at work."""
    bytes_, of_moments = sum(held_items(kernel)), has_moments(kernel)
    tile = FEW_WARPS_TILE if of_moments else WRITTEN_TILE
    tiles, all_registers = -(-inner // tile), 8 * REGISTERS // tile
    if narrowest_item(kernel) > 2:
        if bytes_ * inner <= KEPT_WIDE:
            return Plan(kernel, "row", 1, tile, kept=tiles)
        if of_moments:
            return Plan(kernel, "row", 1, tile, kept=KEPT_PART_OF_MOMENTS // (bytes_ * tile))
        return Plan(kernel, "row", 1, tile, kept=KEPT_PART // (bytes_ * tile), registers=all_registers)
    if of_moments and bytes_ * inner <= KEPT:
        return Plan(kernel, "row", 1, tile, kept=tiles, narrow=True, registers=all_registers // 2)
    return Plan(kernel, "row", 1, WRITTEN_TILE, kept=0, registers=4 * REGISTERS // WRITTEN_TILE if bytes_ == 2 else 0)


def _in_runs(kernel: Kernel, inner: int) -> Plan | None:
    """Tiles within runs along the fastest inner axis, if something is read that is the same for a whole run (a factor
    for each channel of a group): it would be read, and its place computed, for each point. Rows of few tiles are
    written out, and stay in registers as far as these go."""
    loops = [section for section in kernel.sections if section.axes]
    run = next((s.axes[-1].size for s in loops if any(is_of_runs(index, s) for index in indices_of(s))), 0)
    if not isinstance(run, int) or run == 0:
        return None
    whole = power_of_two(run) if run <= RUN_TILES[0] else 0
    tile = whole or next((tile for tile in RUN_TILES if run % tile == 0), 0)
    if tile < LEAST_RUN or run < FULL * tile:
        return None
    if kinds_of_scans(kernel) or finds_positions(kernel) or has_exponentials(kernel):
        return None
    made = replace(kernel, sections=tuple(_of_runs(section, run) for section in kernel.sections))
    held, tiles = len(held_items(made)), -(-run // tile) * (inner // run)
    if not all(map(has_fixed_length, loops)) or not held or tiles > WRITTEN_TILES:
        return Plan(made, "row", 1, tile, run=run)
    return Plan(made, "row", 1, tile, kept=min(tiles, KEPT_BY_A_THREAD // (_in_run(tile) * held)), run=run)


def _in_run(tile: int) -> int:
    """Elements that a thread has of a tile of a run; twice as many in a loop."""
    return 4 if tile < POINTWISE_TILE else 8


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


def _part(kernel: Kernel) -> Dim:
    """How many outer points, one after the other, each sum of a kernel is of."""
    row = AxisAtom(kernel.axes[-1].name)
    parts: set[Dim] = set()
    for store in select(kernel.sections, Store):
        if store.mode == "sum":
            atoms = [term.atom for term in store.index.terms if varies(Index(0, (term,)), kernel.axes[-1])]
            match atoms:
                case [FloorDivAtom(Index(0, (Term(1, atom),)), part)] if atom == row and len(kernel.axes) == 1:
                    parts.add(part)
                case _:
                    raise UnsupportedKernel(f"sums over the outer points of {kernel.name} at {store.index}")
    if len(parts) != 1:
        raise UnsupportedKernel(f"sums over {len(parts)} kinds of parts in {kernel.name}")
    return parts.pop()


def _goes_in_steps(kernel: Kernel, outer: int) -> bool:
    """Whether a kernel only scans columns, and these are enough to keep the machine busy."""
    loops = [section.statements for section in kernel.sections if section.axes]
    if any(isinstance(s, Reduce) for loop in loops for s in loop) or any(parted(loop) is None for loop in loops):
        return False
    return all(any(isinstance(s, Scan) for s in loop) for loop in loops) and outer >= COLUMNS


def _in_steps(kernel: Kernel, outer: int, inner: int) -> Plan:
    """One program goes along each column: as many lanes as there is work for, and as few columns as are loaded well;
    twice as many where there are enough."""
    steps = EXPONENTIAL_STEPS if "logaddexp" in kinds_of_scans(kernel) else STEPS
    width = WARP if outer < 2 * WARP * MANY else 2 * WARP
    thread = _side_by_side(kernel)
    elements = WARP * 8 * thread if width > WARP else STEP_TILE * thread // (8 * STEPS * narrowest_item(kernel))
    if steps > STEPS:
        elements = WARP * 16 * thread
    lanes = min(elements // width, power_of_two(-(-inner // steps)))
    wide = elements // lanes
    while wide > width and outer < wide * MANY:
        wide //= 2
    return Plan(kernel, "column", wide, lanes, steps)


def _side_by_side(kernel: Kernel) -> int:
    """How many columns of a lane a thread has: the more, the less scans keep of each point."""
    scans = [s.scan for s in select(kernel.sections, Scan)]
    exponentials, several, one = SIDE_BY_SIDE
    return exponentials if "logaddexp" in scans else one if len(scans) == 1 else several


def _is_chained(kernel: Kernel) -> bool:
    """Whether a kernel does nothing but scan rows, in one loop."""
    loops = [section for section in kernel.sections if section.axes]
    others = [s for section in kernel.sections if not section.axes for s in section.statements]
    if len(loops) != 1 or any(isinstance(s, Store) for s in others):
        return False
    statements = loops[0].statements
    return any(isinstance(s, Scan) for s in statements) and not any(isinstance(s, Reduce) for s in statements)


def _fitting(kernel: Kernel, most: int, least: int) -> int:
    """The greatest tile of which the loops consist, so that none needs masks; the greatest of all if there is none."""
    lengths = [points(section.axes) for section in kernel.sections if section.axes]
    tile = most
    while tile >= least:
        if all(isinstance(length, int) and length % tile == 0 for length in lengths):
            return tile
        tile //= 2
    return most


def _contiguous_last(kernel: Kernel) -> Kernel:
    """The kernel with an outer axis as its fastest along which memory runs in loops, if it does not along that one."""
    loops = [(section.axes[-1], index) for section in kernel.sections if section.axes for index in indices_of(section)]
    along = [
        axis
        for axis in kernel.axes
        if isinstance(axis.size, Expr) or axis.size >= LEAST_SIDE
        if any(runs_along(index, axis) and varies(index, inner) for inner, index in loops)
    ]
    if not along or kernel.axes[-1] in along or summed(kernel):
        return kernel
    return replace(kernel, axes=(*(axis for axis in kernel.axes if axis is not along[-1]), along[-1]))


def _tiled(kernel: Kernel, hints: Hints) -> Plan | None:
    """A pointwise kernel with its fastest axis as an inner one, if some access runs along another axis."""
    if len(kernel.axes) < 2 or any(isinstance(s, Reduce) for s in statements_of(kernel)):
        return None
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
    if not turned or min(rough(fast.size, hints), rough(turned[-1].size, hints)) < 16:
        return None
    if rough(fast.size, hints) > SQUARE * 65535:
        return None  # more than the second number of a program may be
    axes = (*(axis for axis in others if axis is not turned[-1]), turned[-1])
    sections = tuple(Section((fast,), section.statements) for section in kernel.sections)
    made = replace(kernel, axes=axes, sections=sections)
    sides = (min(SQUARE, power_of_two(rough(points(part), hints))) for part in (axes, (fast,)))
    return Plan(made, "tiled", *sides)


def _rows(kernel: Kernel, hints: Hints) -> Plan | None:
    """A pointwise kernel with long rows as inner loops, if something is read that is the same for a whole row."""
    if len(kernel.axes) < 2 or any(isinstance(s, Reduce) for s in statements_of(kernel)):
        return None
    *others, fast = kernel.axes
    loads = [s.index for s in select(kernel.sections, Load)]
    shared = [index for index in loads if index.terms and not varies(index, fast)]
    size = rough(fast.size, hints)
    if not shared or not LONG_ROW <= size <= ROW_TILE * 65535 or (isinstance(fast.size, int) and fast.size % 8):
        return None
    made = replace(kernel, axes=tuple(others), sections=tuple(Section((fast,), s.statements) for s in kernel.sections))
    inner = min(ROW_TILE, power_of_two(size))
    return Plan(made, "tiled", POINTWISE_TILE // inner or 1, inner)


def _shared(kernel: Kernel) -> Plan | None:
    """A pointwise kernel with some points that have much in common as an inner loop, if enough programs are left."""
    count = points(kernel.axes)
    made = beside(kernel, count // (POINTWISE_TILE * MANY)) if isinstance(count, int) else None
    return None if made is None else Plan(made[0], "shared", POINTWISE_TILE, made[1])
