"""Horizontal fusion: small independent kernels in one launch (an optimizer's step, norms of gradients, `_foreach_*`).

    for i in 36864 { y0[i] = f(x0[i]) }          blocks 0..35: f of x0, y0 and 36864
    for i in 64 { y1[i] = f(x1[i]) }       =>    block 36:     f of x1, y1 and 64        a launch
    for i in 64 { y2[i] = f(x2[i]) }             block 37:     f of x2, y2 and 64

Kernels are alike that differ in their buffers and in how many points they have: points that lie one after the other,
or rows of such points of which each is reduced to a number. A program selects the buffers, the sizes and the first
block of the kernel that its block belongs to, and computes what all of them do. Products of few rows, which leave much
of the device idle, run side by side whatever they do with their sums: a program calls the function of its kernel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from msgspec.structs import replace

from codegen.memory import allocated, buffers_of, memory_roots, taken_by_value
from codegen.triton import tuning
from codegen.triton.accesses import Accesses
from codegen.triton.emit import emit_kernel, function_text
from codegen.triton.plan import Plan, Tiles, plan, scheduled
from stagewire import loop
from stagewire.expr import Expr, symbol
from stagewire.program import KernelInfo
from stagewire.statements import points_of, select, statements_of, writes_of
from stagewire.types import TensorType

POINTS, ROWS, PLACE = symbol("points"), symbol("rows"), symbol("place")
"""What is left open of a kernel: its fastest axis, the one of rows, and where it stores what it reduces all to."""

REDUCTIONS = ("sum", "prod", "max", "min")


class Products(NamedTuple):
    """What small products that run side by side have in common."""

    warps: int


@dataclass(frozen=True)
class Form:
    """What kernels that are alike have in common: the text of a function `each`, the sizes that it takes, the dtypes of
    its buffers, which of them it takes by value, how it is tiled, and whether the numbers of points are multiples of
    `fused_vector`. each: gives that function of a name."""

    text: str
    sizes: tuple[Expr, ...]
    dtypes: tuple[str, ...]
    values: tuple[int, ...]
    tile: tuple[int, int, int]
    in_vectors: bool
    each: Callable[[str], tuple[str, tuple[Expr, ...]]] = field(compare=False)


@dataclass
class Touched:
    """The memory that kernels read and write, as a whole or an element of it."""

    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    elements: set[tuple[str, int]] = field(default_factory=set)

    @property
    def in_part(self) -> set[str]:
        return {root for root, _ in self.elements}

    def add(self, other: Touched) -> None:
        self.read |= other.read
        self.written |= other.written
        self.elements |= other.elements

    def is_free_of(self, other: Touched) -> bool:
        """Whether neither writes what the other reads or writes."""
        whole = self.read | self.written
        if whole & (other.written | other.in_part) or self.written & other.read or self.elements & other.elements:
            return False
        return self.in_part.isdisjoint(other.read | other.written)


@dataclass
class Group:
    """Kernels of one launch, each with its buffers and its own: what is left open of it, or its schedule. start: the
    number of the first one's step. touched: by these, and by what runs from there on. bytes: what the later ones
    allocate."""

    start: int
    form: Form | Products
    kernels: list[loop.Kernel] = field(default_factory=list)
    buffers: list[tuple[str, ...]] = field(default_factory=list)
    own: list[Any] = field(default_factory=list)
    touched: Touched = field(default_factory=Touched)
    bytes: int = 0

    @property
    def parameters(self) -> tuple[str, ...]:
        """The buffers of the launch: those that all kernels share once, then the others, kernel by kernel."""
        if isinstance(self.form, Products):
            return tuple(dict.fromkeys(chain(*self.buffers)))
        shared = self.shared
        once = (self.buffers[0][n] for n in sorted(shared))
        return (*once, *(name for names in self.buffers for n, name in enumerate(names) if n not in shared))

    @property
    def shared(self) -> frozenset[int]:
        """Places among a kernel's buffers of what is the same in all."""
        return frozenset(n for n, names in enumerate(zip(*self.buffers, strict=True)) if len(set(names)) == 1)

    def has_room(self, count: int, size: int) -> bool:
        t, kernels = tuning.SM_90, len(self.kernels) + 1
        if isinstance(self.form, Products) and kernels > t.fused_functions:
            return False
        return kernels * count <= t.fused_buffers and self.bytes + size <= t.fused_bytes


def groups_of(
    graph: loop.LoopGraph, types: dict[str, TensorType], device: str, others: Collection[str] = frozenset()
) -> list[Group]:
    """The kernels on a device that run in launches of several; none of `others`."""
    roots, declared = memory_roots(graph), {buffer.name: buffer for buffer in graph.buffers}
    found: list[Group] = []
    current: dict[Form | Products, Group] = {}
    for number, step in enumerate(graph.steps):
        if isinstance(step, loop.Extern):
            current.clear()
        if not isinstance(step, loop.Kernel):
            continue
        touched = _touched(step, roots)
        names = buffers_of(step)
        place, alike = number, None
        if step.name not in others:
            alike = _product(step, names, types, device) or _alike(step, names, types, device)
        if alike is not None:
            form, own = alike
            made = [allocated(declared[name]) for name in dict.fromkeys(writes_of(step))]
            size = sum(bytes_ if isinstance(bytes_, int) else tuning.SM_90.fused_bytes + 1 for bytes_ in made)
            group = current.get(form)
            if group is None or not touched.is_free_of(group.touched) or not group.has_room(len(names), size):
                group = current[form] = Group(number, form)
                found.append(group)
            else:
                group.bytes += size
            group.kernels.append(step)
            group.buffers.append(names)
            group.own.append(own)
            place = group.start
        for group in current.values():
            if group.start <= place:
                group.touched.add(touched)
    return [group for group in found if len(group.kernels) > 1]


def _touched(kernel: loop.Kernel, roots: Mapping[str, str]) -> Touched:
    found = Touched()
    for statement in statements_of(kernel):
        match statement:
            case loop.Load(buffer=name):
                found.read.add(roots[name])
            case loop.Store(buffer=name, index=loop.Index(int(place), ())) if not kernel.axes and roots[name] == name:
                found.elements.add((name, place))
            case loop.Store(buffer=name):
                found.written.add(roots[name])
    return found


def _alike(
    kernel: loop.Kernel, names: tuple[str, ...], types: dict[str, TensorType], device: str
) -> tuple[Form, dict[Expr, int]] | None:
    """What a kernel has in common with those that are alike, and what is left open; None where it runs alone."""
    t, found = tuning.SM_90, _opened(kernel)
    if found is None:
        return None
    opened, sizes = found
    by_value = taken_by_value(kernel, types)
    if any(types[name].device != device and name not in by_value for name in names):
        return None
    outer, inner = (1, t.fused_row_tile) if len(opened.sections) > 1 else (t.pointwise_tile, 1)
    tiles = scheduled(Tiles(kernel=opened, outer=outer, inner=inner))
    each = partial(_each, tiles, names, types, by_value)
    text, taken = each("each")
    dtypes = tuple(types[name].dtype for name in names)
    values = tuple(n for n, name in enumerate(names) if name in by_value)
    tile = tiles.outer, tiles.inner, tiles.num_warps
    return Form(text, taken, dtypes, values, tile, sizes[POINTS] % t.fused_vector == 0, each), sizes


def _product(
    kernel: loop.Kernel, names: tuple[str, ...], types: dict[str, TensorType], device: str
) -> tuple[Products, Plan] | None:
    """The form of a product of few rows that is too small for the device, and its schedule; None for another kernel."""
    t, k = tuning.SM_90, Accesses(kernel)
    sizes = [points_of(kernel.axes), *k.lengths]
    if not k.is_product or k.sums or any(types[name].device != device for name in names):
        return None
    if not all(isinstance(size, int) for size in sizes) or k.outer * k.inner == 0:
        return None
    schedule = plan(kernel)
    (programs, *_) = schedule.grid
    is_small = {"product": programs < t.multiprocessors, "row": k.outer * k.inner <= t.fused_row_points}  # type: ignore[operator]
    return (Products(schedule.num_warps), schedule) if is_small.get(schedule.kind) else None


def _each(
    schedule: Plan, names: tuple[str, ...], types: dict[str, TensorType], by_value: frozenset[str], name: str
) -> tuple[str, tuple[Expr, ...]]:
    schedule = dataclasses.replace(schedule, kernel=replace(schedule.kernel, name=name))
    return emit_kernel(schedule, names, types, by_value, "block")


def _opened(kernel: loop.Kernel) -> tuple[loop.Kernel, dict[Expr, int]] | None:
    """A kernel of one loop, or of rows that are reduced, with its sizes left open, and these; None where it does
    something else, or at other places, than kernels of a launch of several may."""
    t, inside = tuning.SM_90, [section.axes for section in kernel.sections]
    rows: loop.Axis | None = None
    match inside:
        case [()] if len(kernel.axes) == 1:
            (fast,) = kernel.axes
        case [(fast,), ()] if len(kernel.axes) <= 1:
            rows = next(iter(kernel.axes), None)
        case _:
            return None
    points, count = fast.size, 1 if rows is None else rows.size
    most = t.fused_points if rows is None else t.fused_row_points
    if not isinstance(points, int) or not isinstance(count, int) or not 0 < points * count <= most:
        return None
    if count > t.fused_short_rows and points < t.fused_row_tile // 2:
        return None
    stored: set[Any] = {one.index.constant for one in select(kernel.sections, loop.Store)} if not kernel.axes else {0}
    here = [loop.Term(1, loop.AxisAtom(axis.name)) for axis in kernel.axes]
    places = {frozenset(): loop.Index(0)} | {frozenset([term]): loop.Index(0, (term,)) for term in here}
    loops = dict(places)
    if len(inside) > 1:
        along = loop.Term(1, loop.AxisAtom(fast.name))
        loops[frozenset([along])] = loop.Index(0, (along,))
        for row in here:
            wide, open_ = (replace(row, coefficient=step) for step in (points, POINTS))
            loops[frozenset([along, wide])] = loop.Index(0, (along, open_))
    sections: list[loop.Section] = []
    for section in kernel.sections:
        moved = [_moved(one, loops, bool(section.axes), here) for one in section.statements]
        if None in moved or len(stored) != 1 or not isinstance(min(stored), int):
            return None
        axes = tuple([replace(axis, size=POINTS) for axis in section.axes])
        sections.append(loop.Section(axes, tuple([one for one in moved if one is not None])))
        loops = places
    outer = tuple([replace(axis, size=POINTS if axis is fast else ROWS) for axis in kernel.axes])
    opened = replace(kernel, name="each", axes=outer, sections=tuple(sections))
    return opened, {POINTS: points, ROWS: count, PLACE: stored.pop()}


def _moved(
    statement: loop.Statement, places: Mapping[frozenset[loop.Term], loop.Index], in_loop: bool, here: list[loop.Term]
) -> loop.Statement | None:
    """A statement at what its place is called where sizes are left open; None for what a kernel of a launch of several
    does not do."""
    match statement:
        case loop.Compute():
            return statement
        case loop.Reduce(reduction=kind) if in_loop and kind in REDUCTIONS:
            return statement
        case loop.Load(index=loop.Index(0, terms), mask=None) if frozenset(terms) in places:
            return replace(statement, index=places[frozenset(terms)])
        case loop.Store(index=loop.Index(0, terms), mode="set", mask=None) if (
            not in_loop and here and list(terms) == here
        ):
            return statement
        case loop.Store(index=loop.Index(_, ()), mode="set", mask=None) if not in_loop and not here:
            return replace(statement, index=loop.Index(PLACE))
    return None


def emit_group(group: Group, types: dict[str, TensorType]) -> tuple[str, KernelInfo]:
    """The text of the function that a group is launched as, and what is launched."""
    if isinstance(group.form, Products):
        return _side_by_side(group, types)
    form, name, shared = group.form, group.kernels[0].name, sorted(group.shared)
    outer, inner, warps = form.tile
    unit = tuning.SM_90.fused_vector if form.in_vectors else 1
    own = [n for n in range(len(group.buffers[0])) if n not in shared]
    lines = ["block = tl.program_id(0)"]
    lines += [f"q{n} = p{place}" for place, n in enumerate(shared)]
    start = 0
    for number, sizes in enumerate(group.own):
        points, rows, place = (sizes[one] for one in (POINTS, ROWS, PLACE))
        selected = {f"q{n}": f"p{len(shared) + number * len(own) + at}" for at, n in enumerate(own)}
        selected |= {"points": str(points // unit), "rows": str(rows), "place": str(place), "start": str(start)}
        if number:
            lines.append(f"later = block >= {start}")
        lines += [f"{q} = tl.where(later, {p}, {q})" if number else f"{q} = {p}" for q, p in selected.items()]
        start += rows if inner > 1 else -(-points // outer)
    taken_sizes = [f"points * {unit}" if size == POINTS else size.text for size in form.sizes]
    arguments = ", ".join([*(f"q{n}" for n in range(len(group.buffers[0]))), *taken_sizes, "False"])
    lines.append(f"{name}_each(block - start, {arguments}, XBLOCK, RBLOCK)")
    parameters = group.parameters
    each, _ = form.each(f"{name}_each")
    taken = [*(f"p{n}" for n in range(len(parameters))), "XBLOCK", "RBLOCK"]
    text = f"{each}\n\n{function_text(name, [f'    {line}' for line in lines], taken)}"
    return text, KernelInfo(
        name, parameters, grid=(start,), constants=(("XBLOCK", outer), ("RBLOCK", inner)), num_warps=warps
    )


def _side_by_side(group: Group, types: dict[str, TensorType]) -> tuple[str, KernelInfo]:
    """The same of a group of kernels that differ."""
    name, parameters, start = group.kernels[0].name, group.parameters, 0
    texts, lines = list[str](), ["    block = tl.program_id(0)"]
    for number, (schedule, names) in enumerate(zip(group.own, group.buffers, strict=True)):
        function = f"{name}_{number}"
        text, _ = _each(schedule, names, types, frozenset(), function)
        texts.append(text)
        given = ", ".join(f"p{parameters.index(one)}" for one in names)
        (programs,) = schedule.grid
        lines.append(f"    if (block >= {start}) & (block < {start + programs}):")
        lines.append(f"        {function}(block - {start}, {given}, {schedule.outer}, {schedule.inner})")
        start += programs
    texts.append(function_text(name, lines, [*(f"p{n}" for n in range(len(parameters))), "XBLOCK", "RBLOCK"]))
    constants = (("XBLOCK", 1), ("RBLOCK", 1))
    info = KernelInfo(name, parameters, grid=(start,), constants=constants, num_warps=group.form.warps)
    return "\n\n".join(texts), info
