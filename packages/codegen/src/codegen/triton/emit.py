"""One loop kernel as one Triton function.

    @triton.jit
    def kernel(buffer*, size*, XBLOCK, RBLOCK): one program: XBLOCK points of the flattened outer axes
        section without inner axes -> statements on [XBLOCK, 1]
        section with inner axes    -> statements on [XBLOCK, RBLOCK], in one tile (persistent) or a loop of tiles;
                                      or the tile of the program's second number (see `plan.py`)

Values of the outer scope are [XBLOCK, 1], values of a section [XBLOCK, RBLOCK]; Triton broadcasts between the two.
A value of [XBLOCK, 1] beside tiles is held by several warps, each of which loads it. Where the memory that it came from
may be the result's as well (a buffer taken over in place), all have to have loaded it before one stores.
Symbolic sizes are arguments. A kernel that has some computes indices in 64 bits where its constant WIDE says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from codegen.triton.expressions import TYPES
from codegen.triton.few_rows import ProductEmitter
from codegen.triton.plan import Plan
from codegen.triton.reductions import XR, X, value_numbers
from codegen.triton.scans import parted
from codegen.triton.statements import compared_of, dtypes_of, widened_of
from codegen.triton.strength_reduction import Cheaper
from codegen.triton.tuning import VECTOR_BYTES, WARP
from stagewire.expr import Dim, Expr
from stagewire.graph import Ref
from stagewire.index import affine
from stagewire.loop import Axis, AxisAtom, Compute, Index, Load, Reduce, Scan, Section, Store
from stagewire.statements import points_of, select, statements_of
from stagewire.types import ITEM_SIZE, TensorType, extent

LARGEST_32 = 2**31 - 1 - 2**16
"""The greatest index of which all points of a tile fit into 32 bits."""


def emit_kernel(
    plan: Plan,
    parameters: tuple[str, ...],
    types: dict[str, TensorType],
    values: frozenset[str] = frozenset(),
    block: str = "",
) -> tuple[str, tuple[Expr, ...]]:
    """The text of the kernel, and the sizes that it takes; `parameters` are its buffers in order.

    values: those of which it takes the only element instead of the address. block: the argument that is the number of
    the program, where that is none of its own.
    """
    name, sizes = plan.kernel.name, dict[Expr, str]()

    def body(whole: bool) -> list[str]:
        emitter = _KernelEmitter(
            parameters, types, values=values, kernel=plan.kernel, plan=plan, sizes=sizes, is_whole=whole, block=block
        )
        emitter.emit()
        return emitter.lines

    if not plan.may_fit:
        lines = body(False)  # it finds the sizes
        return function_text(name, lines, arguments_of(parameters, sizes, block), is_launched=not block), tuple(sizes)
    bodies = {f"{name}_whole": body(True), f"{name}_tiles": body(False)}
    lengths = dict.fromkeys(sizes[count] for count in map(points_of, plan.loops) if not isinstance(count, int))
    arguments = arguments_of(parameters, sizes, block)
    calls = [f"        {part}({', '.join(arguments)})" for part in bodies]
    choice = [f"    if {' & '.join(f'(0 < {n}) & ({n} <= RBLOCK)' for n in lengths)}:", calls[0], "    else:", calls[1]]
    parts = [function_text(*one, arguments, is_launched=False) for one in bodies.items()]
    return "\n\n".join([*parts, function_text(name, choice, arguments, is_launched=not block)]), tuple(sizes)


def arguments_of(parameters: tuple[str, ...], sizes: dict[Expr, str], block: str = "") -> list[str]:
    """The names that a function of loops takes: buffers, sizes, constants."""
    first = [block] if block else []
    last = ["WIDE", "XBLOCK", "RBLOCK"] if sizes else ["XBLOCK", "RBLOCK"]
    return [*first, *(f"p{i}" for i in range(len(parameters))), *sizes.values(), *last]


def wide_constant(sizes: Collection[object]) -> tuple[tuple[str, int], ...]:
    """The constant WIDE, which a kernel that takes sizes has, and the loader sets."""
    return (("WIDE", 0),) if sizes else ()


EARLY = ("EARLY", 0)
"""The constant of a kernel that waits for the kernel in front, so that a GPU that can may launch it before that one has
ended (programmatic dependent launch, from compute capability 9.0 on): whether it is. See `begin` in `prelude.py`."""


def function_text(name: str, lines: Iterable[str], arguments: Iterable[str], is_launched: bool = True) -> str:
    """A function of Triton, launched or called by one that is; arguments in capitals are constants."""
    if is_launched:
        lines, arguments = [f"    begin({EARLY[0]})", *lines], [*arguments, EARLY[0]]
    declared = ", ".join(f"{a}: tl.constexpr" if a.isupper() else a for a in arguments)
    return "\n".join(["@triton.jit", f"def {name}({declared}):", *lines]) + "\n"


@dataclass(kw_only=True)
class _KernelEmitter(ProductEmitter):
    """What is known while a kernel is rendered.

    shared_places: where, in a kernel of tiles, sections without inner axes load from
    sums: the stores of sums over outer points, with the axes of their sections; tiles add to t0, t1...
    is_whole: whether a tile is as long as the loops of symbolic length
    block: the argument that is the number of the program; "": `tl.program_id(0)`
    held: values that are cached for later loops, by their place, and by place and section
    stored: the buffers that the kernel stores to
    widened_later: values of half precision that are only used in float32
    terms: the numbers of the values of the section that is being written, by those `known`
    inverses: names of 1 / sum of exponentials
    """

    plan: Plan
    shared_places: list[Index] = field(default_factory=list)
    sums: list[tuple[Store, tuple[Axis, ...]]] = field(default_factory=list)
    is_whole: bool = False
    block: str = ""
    held: dict[object, str] = field(default_factory=dict)
    stored: frozenset[str] = frozenset()
    widened_later: frozenset[str] = frozenset()
    known: dict[str, int] = field(default_factory=dict)
    terms: dict[str, int] = field(default_factory=dict)
    inverses: dict[str, str] = field(default_factory=dict)

    def emit(self) -> None:
        if any(section.axes for section in self.kernel.sections):
            statements = [s for section in self.kernel.sections if not section.axes for s in section.statements]
            self.shared_places = [s.index for s in statements if isinstance(s, Load)]
        statements = tuple(statements_of(self.kernel))
        self.dtypes, self.compared, self.cheaper = dtypes_of(statements), compared_of(statements), Cheaper(statements)
        self.stored = frozenset([s.buffer for s in statements if isinstance(s, Store)])
        self.widened_later = widened_of(statements)
        self.wide = self.needs_64_bits()
        number = self.widened(self.block or "tl.program_id(0)")
        start = f"{number} * XBLOCK"
        if self.plan.chained:
            start = self.begin_part(self.dim(points_of(self.kernel.axes)))
        if self.plan.part != 0:
            start = self.begin_turns()
        if self.plan.kind == "product":
            self.begin_rows(number)
        else:
            self.tiles["x"] = self.kernel.axes, start
            self.put(f"x = {start} + tl.arange(0, XBLOCK)[:, None]")
            self.fit("x", self.kernel.axes, self.plan.part or self.plan.outer)
            self.split("x", self.kernel.axes)
        stored: set[str] = set()
        paired = self.pair()
        for number, section in enumerate(self.kernel.sections):
            if number in paired:
                continue
            if any(isinstance(s, Load) and s.buffer in stored for s in section.statements):
                self.put("tl.debug_barrier()")
            self.number, self.terms = number, value_numbers(section, self.known)
            if self.plan.narrow:
                self.put(f"nothing = tl.program_id(2) {self.unknown()}")
            self.section(number, section)
            stored.update(s.buffer for s in section.statements if isinstance(s, Store))
        self.end_turns()

    def unknown(self) -> str:
        """What makes a 0 a value of the section that is being written, which comes of the last reduction before it."""
        before = [s for section in self.kernel.sections[: self.number] for s in section.statements]
        made = [s.results[0] for s in before if isinstance(s, Reduce) and s.dtype == "float32"]
        if made:
            return f"& {self.names[made[-1]]}.to(tl.int32, bitcast=True)"
        return f"* {'turn' if self.plan.part != 0 else self.number}"

    def begin_turns(self) -> str:
        """The loop over the tiles that a program computes in turn; the first outer point of a tile.

        Rows that are longer than a tile have their sums in memory, where a program adds to its own.
        """
        every = ((store, one.axes) for one in self.kernel.sections for store in select((one,), Store))
        self.sums = [(store, axes) for store, axes in every if store.mode == "sum"]
        part = self.plan.part
        if self.has_whole_rows:
            for number, (store, _) in enumerate(self.sums):
                self.put(f"t{number} = tl.zeros([XBLOCK, RBLOCK], {TYPES[self.types[store.buffer].dtype]})")
            self.load_shared()
        self.put(f"first = {self.widened('tl.program_id(0)')} * {self.dim(part)}")
        stages = self.plan.turn_stages if self.has_whole_rows else 1
        self.put(f"for turn in tl.range(0, {self.dim(part // self.plan.outer)}, num_stages={stages}):")
        self.indent += "    "
        if not self.has_whole_rows:
            self.put("tl.debug_barrier()")
        return "first + turn * XBLOCK"

    def load_shared(self) -> None:
        """Load what all rows share, once."""
        for section in (section for section in self.kernel.sections if section.axes):
            inside, self.terms = {AxisAtom(axis.name) for axis in section.axes}, value_numbers(section, self.known)
            loads = [s for s in section.statements if isinstance(s, Load) and s.mask is None]
            self.inner("", section.axes)
            for load in (s for s in loads if s.buffer not in self.stored):
                if {term.atom for term in load.index.terms} <= inside and self.place(load) not in self.held:
                    super().load(load, self.cache_hint(load))
                    self.held[self.place(load)] = self.names[load.result]

    def load(self, statement: Load, hint: str = "") -> None:
        if self.plan.of_bytes and "r" in self.tiles and self.loads_packed(statement):
            return
        place = self.place(statement)
        if place in self.held:
            self.once_more(statement, place)
            return
        super().load(statement, self.cache_hint(statement))
        if self.stays(statement):
            self.held[place] = self.held[place, self.number] = self.names[statement.result]

    def place(self, load: Load) -> object:
        """What is the same for loads of the same in several sections."""
        axes, start = self.tiles["r"] if "r" in self.index_spread(load.index) else ((), "")
        return self.terms[load.result], tuple(axis.size for axis in axes), start, self.tile

    def once_more(self, statement: Load, place: object) -> None:
        """What was loaded before; in another section as a value of its own, if it is to be kept as narrow as it is."""
        along = self.index_spread(statement.index)
        if not self.plan.narrow or statement.result not in self.widened_later:
            self.names[statement.result], self.spread[statement.result] = self.held[place], along
            return
        here = place, self.number
        if here not in self.held:
            self.define(statement.result, f"again({self.held[place]}, nothing)", along)
            self.held[here] = self.names[statement.result]
        self.names[statement.result], self.spread[statement.result] = self.held[here], along

    def stays(self, statement: Load) -> bool:
        """Whether what is loaded is kept in registers for later loops over the row."""
        if statement.mask is not None or statement.buffer in self.stored or self.index_spread(statement.index) != XR:
            return False
        return self.plan.narrow if self.plan.cached is None else (self.tile or 0) < self.plan.cached

    def cache_hint(self, statement: Load) -> str:
        """What a later loop reads again is to stay; what the last one reads is not."""
        is_held = (self.tile or 0) < (self.plan.cached or 0)
        if is_held or not self.plan.rereads or self.index_spread(statement.index) != XR:
            return ""
        totals = {p.total for p in self.plan.softmax.online}
        loops = [section for n, section in enumerate(self.kernel.sections) if section.axes and n not in totals]
        readers = [any(isinstance(s, Load) and s.buffer == statement.buffer for s in one.statements) for one in loops]
        here = next(n for n, section in enumerate(loops) if statement in section.statements)
        if any(readers[here + 1 :]):
            return ", eviction_policy='evict_last'"
        return ", eviction_policy='evict_first'" if any(readers[:here]) else ""

    def as_tile(self, statement: Load, along: frozenset[str]) -> frozenset[str]:
        """A vector of which each thread would have some elements, but fewer than it loads at once of a tile, is loaded
        by all rows (columns) of the tile: Triton would take all tiles apart in the way of the vector."""
        lengths = {"x": self.plan.outer, "r": self.plan.inner}
        here = [way for way in along if lengths.get(way, 1) > 1]
        if statement.mask is not None or len(here) != 1 or "r" not in self.tiles or min(lengths.values()) == 1:
            return along
        if self.plan.kind in ("column", "product") or (self.plan.part != 0 and self.plan.is_crossed):
            return along  # what is across in tiles of a loop goes through shared memory, and is read there one by one
        threads, most = WARP * self.plan.num_warps, VECTOR_BYTES // ITEM_SIZE[statement.dtype]
        return XR if threads <= lengths[here[0]] < threads * most else along

    def end_turns(self) -> None:
        """Store the sums behind the loop."""
        self.indent = "    "
        for number, (store, axes) in enumerate(self.sums if self.has_whole_rows else ()):
            self.inner("", axes)
            pointer, mask = self.of_part(store)
            self.put(f"tl.store({pointer}, tl.sum(t{number}, 0)[None, :]{', ' + mask if mask else ''})")

    def of_part(self, store: Store) -> tuple[str, str]:
        """The address of a row of sums of the part at hand, and the mask that bounds it."""
        names, spread = dict(self.names), dict(self.spread)
        self.put("y = first + tl.zeros([1, 1], tl.int32)")
        self.split("y", self.kernel.axes, frozenset())
        pointer = f"{self.pointer[store.buffer]} + ({self.index(store.index)})"
        self.names, self.spread = names, spread
        return pointer, self.bounds(frozenset("r"))

    def form(self, statement: Compute, operands: list[str]) -> str | None:
        """Exponentials of what is at most 0 need no look at its range. Nor does their sum, of which one is 1: its
        inverse does for all."""
        match statement:
            case Compute(_, "exp", (Ref(name),), "float32") if name in self.plan.softmax.differences:
                return f"exponential({operands[0]})"
            case Compute(_, "div", (_, Ref(name)), "float32") if name in self.inverses:
                return f"({operands[0]} * {self.inverses[name]})"
        return super().form(statement, operands)

    def fold(self, reduction: Reduce, values: tuple[str, ...]) -> None:
        super().fold(reduction, values)
        for total in self.plan.softmax.divisors & self.names.keys() - self.inverses.keys():
            self.inverses[total] = f"i{self.made}"
            self.put(f"i{self.made} = 1.0 / {self.names[total]}")

    def pair(self) -> set[int]:
        """The sections of sums that need no loop of their own; in rows that are at hand as a whole none does."""
        sections = self.kernel.sections
        online = [p for p in self.plan.softmax.online if not self.fits_tile(points_of(sections[p.maximum].axes))]
        self.paired = {p.greatest.results[0]: p.sum for p in online}
        return {p.total for p in online}

    @property
    def has_whole_rows(self) -> bool:
        return all(self.fits_tile(points_of(axes)) for axes in self.plan.loops)

    def fits_tile(self, count: Dim) -> bool:
        return count <= self.plan.inner if isinstance(count, int) else self.is_whole

    def needs_64_bits(self) -> bool | None:
        """True when some buffer or loop is too large for 32-bit indices; None where that depends on symbolic sizes."""
        spans = [points_of(self.kernel.axes), *(extent(self.types[name]) for name in self.parameters)]
        spans += [points_of(section.axes) for section in self.kernel.sections]
        known = [span for span in spans if isinstance(span, int)]
        if len(known) == len(spans):
            return max(known) > LARGEST_32
        self.dim(next(span for span in spans if not isinstance(span, int)))  # one is an argument: WIDE goes with them
        return None

    def section(self, number: int, section: Section) -> None:
        if not section.axes:
            self.tiles.pop("r", None)
            self.statements(section.statements, X)
            return
        count = points_of(section.axes)
        self.run = 0
        if self.plan.kind == "tiled" or self.plan.chained:
            number = self.widened("part") if self.plan.chained else "tl.program_id(1)"
            self.inner(f"{number} * RBLOCK", section.axes)
            self.statements(section.statements, XR)
            return
        if self.plan.kind == "product":
            self.product_loop(number, section)
            return
        reductions = self.apart([s for s in section.statements if isinstance(s, Reduce)])
        self.group = self.plan.vectors[number]
        if self.fits_tile(count):
            self.inner("", section.axes)
            self.statements(section.statements, XR)
            for reduction in reductions:
                if reduction.reduction == "welford":
                    self.moments(reduction, [self.masked(reduction)[0]], self.dim(count))
                else:
                    self.fold(reduction, self.masked(reduction))
            return
        if len(section.axes) > 1 and section.axes[-1].size == self.plan.run:
            self.run = self.plan.run
        if self.plan.cached is not None:
            self.tiles_one_by_one(section, count, reductions)
            return
        self.begin_scans(section.statements)
        if self.plan.steps > 1:
            self.steps(number, section, count)
            return
        accumulators = {id(s): self.accumulator(number, i, s) for i, s in enumerate(reductions)}
        stages = self.plan.num_stages[number]
        end = self.dim(count) if not self.run else f"{self.dim(self.tiles_of(count))} * RBLOCK"
        steps = f"tl.range(0, {end}, RBLOCK, num_stages={stages})"
        self.put(f"for base in {steps if stages > 1 else f'range(0, {end}, RBLOCK)'}:")
        indent, self.indent = self.indent, self.indent + "    "
        if self.run:
            self.in_run(section.axes, "base // RBLOCK")
        else:
            self.inner("base", section.axes)
        self.statements(section.statements, XR)
        for reduction in reductions:
            self.accumulate(reduction, accumulators[id(reduction)])
        self.indent = indent
        self.carries.clear()
        for reduction in reductions:
            self.folded(reduction, accumulators[id(reduction)], count)

    def tiles_one_by_one(self, section: Section, count: Dim, reductions: list[Reduce]) -> None:
        """A loop over tiles that is written out, so that the compiler loads as early as it has registers for."""
        assert isinstance(count, int), "loops of symbolic length are in no plan that writes them out"
        tiles = self.tiles_of(count)
        kept = [s for s in reductions if s.reduction == "welford" and self.run and self.plan.cached == tiles]
        values: dict[int, list[str]] = {id(s): [] for s in kept}
        loops = [s for s in reductions if id(s) not in values]
        accumulators = {id(s): self.accumulator(self.number, i, s) for i, s in enumerate(loops)}
        self.put(f"lanes = {self.lanes}")
        names, spread = dict(self.names), dict(self.spread)
        for tile in range(tiles):  # type: ignore[arg-type]
            base = tile * self.plan.inner
            self.tile, self.names, self.spread = tile, dict(names), dict(spread)
            self.suffix = f"_{self.number}_{tile}"
            if self.run:
                self.in_run(section.axes, tile)
            else:
                self.ahead = {axis.name: ("lanes", base) for axis in section.axes if len(section.axes) == 1}
                self.inner(str(base), section.axes, base + self.plan.inner <= count)
            self.statements(section.statements, XR)
            for reduction in loops:
                self.accumulate(reduction, accumulators[id(reduction)])
            for reduction in kept:
                values[id(reduction)].append(self.masked(reduction)[0])
        self.names, self.spread, self.suffix, self.ahead, self.tile = names, spread, "", {}, None
        for reduction in kept:
            self.moments(reduction, values[id(reduction)], self.dim(count))
        for reduction in loops:
            self.folded(reduction, accumulators[id(reduction)], count)

    def folded(self, reduction: Reduce, names: tuple[str, ...], count: Dim) -> None:
        """What a loop of tiles comes to."""
        other = f"tl.full([1, 1], {self.neutral(reduction)}, {TYPES[self.working(reduction)]})"
        self.fold(reduction, (*(self.within(name, other) for name in names), *self.met(reduction, count)))

    def in_run(self, axes: tuple[Axis, ...], number: int | str) -> None:
        """The points of a tile, of which so many come before it. All are of one run."""
        *slow, fast = axes
        each, full = -(-self.run // self.plan.inner), self.run % self.plan.inner == 0
        if isinstance(number, int):
            start = number % each * self.plan.inner
            self.ahead = {fast.name: ("lanes", start)}
            self.put(f"run = {number // each}")
            self.inner(str(start), (fast,), full)
        else:
            self.put(f"run = {self.widened(f'({number} // {each})')}")
            self.inner(f"{number} % {each} * RBLOCK" if each > 1 else "", (fast,), full)
        self.split("run", tuple(slow), frozenset())

    def steps(self, number: int, section: Section, count: Dim) -> None:
        """A loop over tiles in which each lane has some points that follow each other."""
        parts, steps = parted(section.statements), self.plan.steps
        assert parts is not None, "a load that depends on a scan is in no plan of steps"
        loop = f"tl.range(0, {self.dim(count)}, RBLOCK * {steps}, num_stages={self.plan.num_stages[number]})"
        self.put(f"for base in {loop}:")
        self.indent = "        "
        self.put(f"first = base + {self.lanes}")
        alone = section.axes if len(section.axes) == 1 else ()
        before, spread = self.names, self.spread
        known = [(dict(before), dict(spread)) for _ in range(steps)]
        for statements in parts:
            match statements:
                case (Scan() as scan,):
                    self.scan_in_steps(scan, known)
                case _:
                    for step, (self.names, self.spread) in enumerate(known):
                        self.suffix, self.ahead = f"_{step}", {axis.name: ("first", step) for axis in alone}
                        self.inner(f"base + {step}", section.axes)
                        self.statements(statements, XR)
        self.names, self.spread, self.suffix, self.ahead = before, spread, "", {}
        self.indent = "    "
        self.carries.clear()

    def store(self, statement: Store, scope: frozenset[str], hint: str = "") -> None:
        if statement.mode == "sum":
            self.add_up(statement)
            return
        if scope == X and statement.index in self.shared_places:
            self.put("tl.debug_barrier()")
        leaves_room = self.plan.rereads and scope == XR  # for what is read again
        super().store(statement, scope, ", eviction_policy='evict_first'" if leaves_room else "")

    def add_up(self, store: Store) -> None:
        """Add a tile to the sums of its part: to what is held of them, or in memory."""
        number = next(n for n, (one, _) in enumerate(self.sums) if one is store)
        dtype = self.types[store.buffer].dtype
        value = f"tl.broadcast_to(({self.operand(store.value, dtype)}).to({TYPES[dtype]}), [XBLOCK, RBLOCK])"
        rows = self.bounds(X)
        value = f"tl.where({rows}, {value}, 0)" if rows else value
        if self.has_whole_rows:
            self.put(f"t{number} += {value}")
            return
        pointer, mask = self.of_part(store)
        before = f"tl.load({pointer}, {' & '.join(filter(None, (mask, '(turn > 0)')))}, other=0)"
        self.put(f"tl.store({pointer}, {before} + tl.sum({value}, 0)[None, :]{', ' + mask if mask else ''})")

    @property
    def lanes(self) -> str:
        """The first points of the lanes of a tile."""
        lanes = self.widened("tl.arange(0, RBLOCK)[None, :]")
        return lanes if self.plan.steps == 1 else f"{lanes} * {self.plan.steps}"

    def inner(self, start: str, axes: tuple[Axis, ...], is_full: bool = False) -> None:
        """The inner points of one tile, which may be known to be full, and the axes that they stand for."""
        self.tiles["r"] = axes, start
        self.put(f"r = {start} + {self.lanes}" if start else f"r = {self.lanes}")
        self.fit("r", axes, 1 if is_full else self.plan.inner * self.plan.steps)
        self.split("r", axes)

    def fit(self, way: str, axes: tuple[Axis, ...], tile: Dim) -> None:
        """The mask of the points of a tile that are inside of the loops, unless all of them always are."""
        count = points_of(axes)
        if tile == 1 or (isinstance(count, int) and isinstance(tile, int) and count % tile == 0):
            self.full |= {way}
        else:
            self.full -= {way}
            self.put(f"{way}mask = {way} < {self.dim(count)}")

    # random numbers

    def drawn(self, state: str, place: Index, sharing: str) -> str:
        """Four elements that lie together are made at once, where a tile has them side by side."""
        way = self.along_fours(place) if int(sharing.rpartition(" ")[2]) % 4 == 0 else None
        if way is None:
            return super().drawn(state, place, sharing)
        gathered = "columns" if way == "x" else "rows"
        return f"philox_{gathered}(philox_fours({state}, {self.at_every(4, place, way)}, {sharing}))"

    def along_fours(self, place: Index) -> str | None:
        """The direction of the tile in which each four neighbours are the elements 4 k to 4 k + 3, if there is one."""
        steps = affine(place)
        if steps is None:
            return None
        for way, (axes, _) in self.tiles.items():
            length = self.plan.outer if way == "x" else self.plan.inner // self.plan.steps
            if not axes or length < 4 or steps.get(axes[-1].name) != 1:
                continue
            others = [place.constant, *(step for name, step in steps.items() if name != axes[-1].name)]
            others += [axes[-1].size] if len(axes) > 1 else []
            if all(isinstance(step, int) and step % 4 == 0 for step in others):
                return way
        return None

    def at_every(self, step: int, place: Index, way: str) -> str:
        """The index at every so many points of the tile."""
        names, spread, (axes, start) = dict(self.names), dict(self.spread), self.tiles[way]
        flat, points = ("y", f"XBLOCK // {step})[:, None]") if way == "x" else ("s", f"RBLOCK // {step})[None, :]")
        self.put(f"{flat} = {start + ' + ' if start else ''}{step} * tl.arange(0, {points}")
        self.split(flat, axes)
        text = self.index(place)
        self.names, self.spread = names, spread
        return text
