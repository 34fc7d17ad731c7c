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

from dataclasses import dataclass, field

from codegen.errors import UnsupportedKernel
from codegen.triton.expressions import FLOATS, LOW_PRECISION, TYPES, limits
from codegen.triton.plan import Plan, points
from codegen.triton.scans import ScanEmitter
from codegen.triton.statements import dtypes_of
from stagewire.expr import Expr
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Index, Kernel, Load, Reduce, Section, Store
from stagewire.types import TensorType, extent

LARGEST_32 = 2**31 - 1 - 2**16
"""The greatest index of which all points of a tile fit into 32 bits."""

POSITIONS = "r + tl.zeros([XBLOCK, RBLOCK], tl.int32)"
"""The positions of a tile, in as many bits as indices take."""

X = frozenset("x")
XR = frozenset("xr")


def emit_kernel(
    plan: Plan, parameters: tuple[str, ...], types: dict[str, TensorType], values: frozenset[str] = frozenset()
) -> tuple[str, tuple[Expr, ...]]:
    """The text of the kernel, and the sizes that it takes; `parameters` are its buffers in order.

    values: those of which it takes the only element, an int64, instead of the address.
    """
    emitter = _KernelEmitter(parameters, types, values=values, kernel=plan.kernel, plan=plan)
    return emitter.emit(), tuple(emitter.sizes)


@dataclass(kw_only=True)
class _KernelEmitter(ScanEmitter):
    """tiles: the axes that run along "x" and "r" where statements are being written, and the tile's first point.

    shared_places: where, in a kernel of tiles, sections without inner axes load from.
    """

    kernel: Kernel
    plan: Plan
    tiles: dict[str, tuple[tuple[Axis, ...], str]] = field(default_factory=dict)
    shared_places: list[Index] = field(default_factory=list)

    def emit(self) -> str:
        if any(section.axes for section in self.kernel.sections):
            statements = [s for section in self.kernel.sections if not section.axes for s in section.statements]
            self.shared_places = [s.index for s in statements if isinstance(s, Load)]
        self.dtypes = dtypes_of(tuple(s for section in self.kernel.sections for s in section.statements))
        self.wide = self.needs_64_bits()
        start = f"{self.widened('tl.program_id(0)')} * XBLOCK"
        self.tiles["x"] = self.kernel.axes, start
        self.put(f"x = {start} + tl.arange(0, XBLOCK)[:, None]")
        self.fit("x", self.kernel.axes, self.plan.outer)
        self.split("x", self.kernel.axes)
        stored: set[str] = set()
        for number, section in enumerate(self.kernel.sections):
            if any(isinstance(s, Load) and s.buffer in stored for s in section.statements):
                self.put("tl.debug_barrier()")
            self.section(number, section)
            stored.update(s.buffer for s in section.statements if isinstance(s, Store))
        arguments = [*(f"p{i}" for i in range(len(self.parameters))), *self.sizes.values()]
        constants = [*(["WIDE"] if self.sizes else []), "XBLOCK", "RBLOCK"]
        signature = ", ".join(arguments + [f"{name}: tl.constexpr" for name in constants])
        return "\n".join(["@triton.jit", f"def {self.kernel.name}({signature}):", *self.lines]) + "\n"

    def needs_64_bits(self) -> bool | None:
        """True when some buffer or loop is too large for 32-bit indices; None where that depends on symbolic sizes."""
        spans = [points(self.kernel.axes), *(extent(self.types[name]) for name in self.parameters)]
        spans += [points(section.axes) for section in self.kernel.sections]
        known = [span for span in spans if isinstance(span, int)]
        return None if len(known) < len(spans) else max(known) > LARGEST_32

    def section(self, number: int, section: Section) -> None:
        if not section.axes:
            self.tiles.pop("r", None)
            self.statements(section.statements, X)
            return
        count = points(section.axes)
        if self.plan.kind == "tiled":
            self.inner("tl.program_id(1) * RBLOCK", section.axes)
            self.statements(section.statements, XR)
            return
        reductions = [s for s in section.statements if isinstance(s, Reduce)]
        if isinstance(count, int) and count <= self.plan.inner:
            self.inner("", section.axes)
            self.statements(section.statements, XR)
            for reduction in reductions:
                if reduction.reduction == "welford":
                    self.moments(reduction, count)
                else:
                    self.fold(reduction, self.masked(reduction))
            return
        self.begin_scans(section.statements)
        accumulators = {id(s): self.accumulator(number, i, s) for i, s in enumerate(reductions)}
        stages = self.plan.stages(section)
        steps = f"tl.range(0, {self.dim(count)}, RBLOCK, num_stages={stages})"
        self.put(f"for base in {steps if stages > 1 else f'range(0, {self.dim(count)}, RBLOCK)'}:")
        self.indent = "        "
        self.inner("base", section.axes)
        self.statements(section.statements, XR)
        for reduction in reductions:
            self.accumulate(reduction, accumulators[id(reduction)])
        self.indent = "    "
        self.carries.clear()
        for reduction in reductions:
            state = accumulators[id(reduction)]
            if reduction.reduction == "welford":
                met = f"(({self.dim(count)} - tl.arange(0, RBLOCK)[None, :] + RBLOCK - 1) // RBLOCK)"
                state += (f"{met}.to({TYPES[self.working(reduction)]}) + tl.zeros([XBLOCK, RBLOCK], tl.float32)",)
            self.fold(reduction, state)

    def store(self, statement: Store, scope: frozenset[str]) -> None:
        if scope == X and statement.index in self.shared_places:
            self.put("tl.debug_barrier()")
        super().store(statement, scope)

    def inner(self, start: str, axes: tuple[Axis, ...]) -> None:
        """The inner points of one tile, and the axes that they stand for."""
        lanes = "tl.arange(0, RBLOCK)[None, :]"
        self.tiles["r"] = axes, start
        self.put(f"r = {start} + {self.widened(lanes)}" if start else f"r = {lanes}")
        self.fit("r", axes, self.plan.inner)
        self.split("r", axes)

    def fit(self, way: str, axes: tuple[Axis, ...], tile: int) -> None:
        """The mask of the points of a tile that are inside of the loops, unless all of them always are."""
        count = points(axes)
        if isinstance(count, int) and count % tile == 0:
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
        return f"philox_{gathered}(philox_fours({state}, {self.at_fours(place, way)}, {sharing}))"

    def along_fours(self, place: Index) -> str | None:
        """The direction of the tile in which each four neighbours are the elements 4 k to 4 k + 3, if there is one."""
        steps = {term.atom.name: term.coefficient for term in place.terms if isinstance(term.atom, AxisAtom)}
        if len(steps) < len(place.terms):
            return None
        for way, (axes, _) in self.tiles.items():
            length = self.plan.outer if way == "x" else self.plan.inner
            if not axes or length < 4 or steps.get(axes[-1].name) != 1:
                continue
            others = [place.constant, *(step for name, step in steps.items() if name != axes[-1].name)]
            others += [axes[-1].size] if len(axes) > 1 else []
            if all(isinstance(step, int) and step % 4 == 0 for step in others):
                return way
        return None

    def at_fours(self, place: Index, way: str) -> str:
        """The index at every fourth point of the tile."""
        names, spread, (axes, start) = dict(self.names), dict(self.spread), self.tiles[way]
        flat, points = ("y", "XBLOCK // 4)[:, None]") if way == "x" else ("s", "RBLOCK // 4)[None, :]")
        self.put(f"{flat} = {start + ' + ' if start else ''}4 * tl.arange(0, {points}")
        self.split(flat, axes)
        text = self.index(place)
        self.names, self.spread = names, spread
        return text

    # reductions

    def neutral(self, reduction: Reduce) -> str:
        dtype = self.working(reduction)
        match reduction.reduction:
            case "sum" | "any" | "xor_sum" | "welford":
                return "0"
            case "prod" | "all":
                return "1"
            case "max" | "argmax":
                return "float('-inf')" if dtype in FLOATS else str(limits(dtype)[0])
            case "min" | "argmin":
                return "float('inf')" if dtype in FLOATS else str(limits(dtype)[1])
        raise UnsupportedKernel(f"reduction {reduction.reduction!r}")

    def operand_dtype(self, reduction: Reduce) -> str:
        operand = reduction.operand
        return self.dtypes[operand.name] if isinstance(operand, Ref) else reduction.dtype

    def working(self, reduction: Reduce) -> str:
        """The dtype of accumulation."""
        if reduction.reduction in ("argmax", "argmin"):
            dtype = self.operand_dtype(reduction)
            return "int32" if dtype == "bool" else _widened(dtype)
        if reduction.reduction in ("any", "all"):
            return "int32"
        return _widened(reduction.dtype)

    def masked(self, reduction: Reduce) -> tuple[str, ...]:
        """The operand over the tile, neutral outside of the loops, in the dtype of accumulation; and its positions,
        which are greater outside of them than inside."""
        dtype = self.working(reduction)
        value = self.operand(reduction.operand, reduction.dtype)
        if reduction.reduction in ("any", "all"):
            value = f"({value} != 0)"
        value = f"tl.broadcast_to(({value}).to({TYPES[dtype]}), [XBLOCK, RBLOCK])"
        tile = self.where_inside(value, f"tl.full([1, 1], {self.neutral(reduction)}, {TYPES[dtype]})")
        return (tile, POSITIONS) if reduction.reduction in ("argmax", "argmin") else (tile,)

    def where_inside(self, value: str, other: str) -> str:
        """A value over the tile, another outside of the loops."""
        mask = self.bounds(XR)
        return f"tl.where({mask}, {value}, {other})" if mask else value

    def accumulator(self, section: int, number: int, reduction: Reduce) -> tuple[str, ...]:
        """Define the running state of a looped reduction, at its neutral element; positions at those of the first
        tile, the values of which are at least as good."""
        dtype = TYPES[self.working(reduction)]
        starts = [f"tl.full([XBLOCK, RBLOCK], {self.neutral(reduction)}, {dtype})"]
        if reduction.reduction in ("argmax", "argmin"):
            lanes = self.widened("tl.arange(0, RBLOCK)[None, :]")
            starts.append(f"{lanes} + tl.zeros([XBLOCK, RBLOCK], tl.int32)")
        elif reduction.reduction == "welford":
            starts *= 2
        names = tuple(f"a{section}_{number}_{i}" for i in range(len(starts)))
        for name, start in zip(names, starts, strict=True):
            self.put(f"{name} = {start}")
        return names

    def accumulate(self, reduction: Reduce, names: tuple[str, ...]) -> None:
        """Add a tile to the state. A lane meets greater and greater positions, so that it keeps that of an equal."""
        value, *_ = self.masked(reduction)
        match reduction.reduction:
            case "sum":
                self.put(f"{names[0]} += {value}")
            case "any" | "xor_sum" | "all" | "prod" | "max" | "min":
                self.put(f"{names[0]} = {_COMBINE[reduction.reduction]}({names[0]}, {value})")
            case "argmax" | "argmin":
                best, place = names
                self.put(f"tile = {value}")
                compared = ">=" if reduction.reduction == "argmax" else "<="
                self.put(f"better = ({best} == {best}) & ~({best} {compared} tile)  # a nan is, and stays")
                self.put(f"{best} = tl.where(better, tile, {best})")
                self.put(f"{place} = tl.where(better, {POSITIONS}, {place})")
            case "welford":
                mean, squares = names
                self.put(f"step = {self.where_inside(f'{value} - {mean}', '0.0')}")
                count = f"(tl.zeros([1, 1], {TYPES[self.working(reduction)]}) + (base // RBLOCK + 1))"
                self.put(f"{mean} += step * (1.0 / {count})")
                self.put(f"{squares} += step * ({value} - {mean})")

    def moments(self, reduction: Reduce, count: int) -> None:
        """Mean, squared deviations and count of rows that are at hand as a whole: two passes, and a correction by what
        the deviations sum up to (Chan, Golub, LeVeque 1983), so that a constant row has no variance."""
        dtype = TYPES[self.working(reduction)]
        (tile, *_) = self.masked(reduction)
        mean, off, rest, squares = (f"f{len(self.names)}_{name}" for name in ("mean", "off", "rest", "squares"))
        self.put(f"{mean} = tl.sum({tile}, 1)[:, None] / {count}")
        self.put(f"{off} = {self.where_inside(f'{tile} - {mean}', '0')}")
        self.put(f"{rest} = tl.sum({off}, 1)[:, None] / {count}")
        self.put(f"{squares} = maximum(tl.sum({off} * {off}, 1)[:, None] - {rest} * {rest} * {count}, 0.0)")
        kept = (
            f"tl.where({rest} == {rest}, {mean} + {rest}, {mean})",
            squares,
            f"tl.full([XBLOCK, 1], {count}, {dtype})",
        )
        for result, text in zip(reduction.results, kept, strict=True):
            self.define(result, f"{text}.to({TYPES[reduction.dtype]})", X)

    def fold(self, reduction: Reduce, values: tuple[str, ...]) -> None:
        """Combine a tile along its inner direction into [XBLOCK, 1]."""
        dtype = TYPES[reduction.dtype]
        kind = reduction.reduction
        if kind == "sum":
            self.define(reduction.results[0], f"tl.sum({values[0]}, 1)[:, None].to({dtype})", X)
        elif kind in ("any", "all"):
            folded = f"tl.reduce({values[0]}, 1, {_COMBINE[kind]})[:, None]"
            self.define(reduction.results[0], f"({folded} != 0)", X)
        elif kind in ("prod", "max", "min", "xor_sum"):
            folded = f"tl.reduce({values[0]}, 1, {_COMBINE[kind]})[:, None]"
            self.define(reduction.results[0], f"{folded}.to({dtype})", X)
        else:
            spare = [f"f{len(self.names)}_{i}" for i in range(len(values))]
            self.put(f"{', '.join(spare)} = tl.reduce(({', '.join(values)}), 1, {_COMBINE[kind]})")
            kept = [spare[1]] if kind in ("argmax", "argmin") else spare
            for result, name in zip(reduction.results, kept, strict=True):
                self.define(result, f"{name}[:, None].to({dtype})", X)


_COMBINE = {
    "prod": "product",
    "max": "maximum",
    "min": "minimum",
    "any": "either",
    "all": "both",
    "xor_sum": "exclusive",
    "argmax": "larger_first",
    "argmin": "smaller_first",
    "welford": "welford",
}


def _widened(dtype: str) -> str:
    return "float32" if dtype in LOW_PRECISION else dtype
