"""Products of few rows on tensor cores: what is large, as the weights of a layer are, is read once for all rows.

for i in 8, j in 2048 {                              one program: all i, some j, by tiles of k
  s = sum of x[i, k] * w[j, k] for k in 4096   =>      total += tl.dot(x of [i, k], w of [k, j])
  y[i, j] = f(s, ...)                                  s = total as [i * j, 1], then as any kernel
}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

from codegen.triton.accesses import varies
from codegen.triton.reductions import ReductionEmitter, X
from stagewire import index as ix
from stagewire.graph import Ref
from stagewire.literals import HALVES
from stagewire.loop import Axis, Compute, Index, IndexValue, Kernel, Load, Reduce, Section
from stagewire.statements import axes_of_values, points_of, results, select, summed_products, used_values

MOST_ROWS = 16
"""The rows of the tensor cores' smallest tile."""


@dataclass(frozen=True)
class FewRows:
    """The outer axes of such a kernel.

    few: of the rows. many: of the columns. batch: of both operands. products: by the name of each sum, its operands:
    the one with the rows, and the one with the columns, as they are before they are converted from half precision.
    form: whether both are of the same half precision; else products are in parts, where one is a bfloat16, or of
    numbers in float32.
    """

    few: tuple[Axis, ...]
    many: tuple[Axis, ...]
    batch: tuple[Axis, ...]
    products: dict[str, tuple[str, str]]
    form: Literal["half", "parts", "tf32x3"]


def few_rows_of(kernel: Kernel) -> FewRows | None:
    """The axes of a kernel that does nothing in its one loop but to sum up products of elements of two matrices, one
    of which has few rows; None for any other."""
    if not kernel.axes or not kernel.sections[0].axes or any(section.axes for section in kernel.sections[1:]):
        return None
    body = kernel.sections[0].statements
    found = summed_products(body)
    sums = [one for one in body if isinstance(one, Reduce)]
    made = {one.result: one for one in body if isinstance(one, Load | Compute | IndexValue)}
    if not found or len(found) < len(sums) or len(sums) + len(made) < len(body):
        return None
    products = {total.operand.name for total in sums}
    if any(one.dtype != "float32" for one in (*sums, *(made[name] for name in products))):
        return None
    along = {name: axes & {axis.name for axis in kernel.axes} for name, axes in axes_of_values(body).items()}
    if not along.keys() >= set(chain(*found.values())):
        return None
    sides = {frozenset(along[a] - along[b]) for pair in found.values() for a, b in (pair, pair[::-1])}
    rest = [one for one in made.values() if one.result not in products]
    if len(sides) != 2 or not all(sides):
        return None
    if any((isinstance(one, Load) and one.mask is not None) or used_values(one) & products for one in rest):
        return None
    few, many = sorted((tuple(axis for axis in kernel.axes if axis.name in side) for side in sides), key=_points)
    names = [{axis.name for axis in axes} for axes in (few, many)]
    if not 1 < _points(few) <= MOST_ROWS or any(all(along[one.result] & side for side in names) for one in rest):
        return None
    operands = {total: (a, b) if names[0] <= along[a] else (b, a) for total, (a, b) in found.items()}
    halves = {name: _half(made[name], made) for name in chain(*found.values())}
    kinds = {frozenset(made[halves[name] or name].dtype for name in pair) for pair in operands.values()}
    form: Any = "half" if len(kinds) == 1 and kinds <= {frozenset([half]) for half in HALVES} else "tf32x3"
    if kinds == {frozenset(("float32", "bfloat16"))}:
        form = "parts"
    if form != "tf32x3":
        operands = {total: (halves[a] or a, halves[b] or b) for total, (a, b) in operands.items()}
    batch = tuple(axis for axis in kernel.axes if axis not in few + many)
    return FewRows(few, many, batch, operands, form)


def _points(axes: tuple[Axis, ...]) -> int:
    """How many points axes have; more than a tile has rows where that is open."""
    count = points_of(axes)
    return count if isinstance(count, int) else MOST_ROWS + 1


def _half(value: Any, made: Mapping[str, Any]) -> str | None:
    """The value of half precision that a value is converted from."""
    match value:
        case Compute(op="convert", operands=(Ref(name),)) if name in made and made[name].dtype in HALVES:
            return name
    return None


# ---- loads of products whose weights are bytes, each of which may hold two numbers of four bits
#
# s = sum of x[2 k] * low(w[k]) * scale[k // 64] + x[2 k + 1] * high(w[k]) * scale[k // 64]
#
# A thread loads 16 bytes at once, which are many points of w, and of the rest one element after the other. Here what
# lies side by side is loaded at once and taken apart, and what a run of points has in common is loaded once.

LEAST_RUN = 8
"""Points of the shortest run that is loaded once: as many as a thread has."""


def run_of(index: Index, axes: Sequence[Axis], tile: int) -> int:
    """How many neighbours of a loop read the same element, if tiles consist of such runs; else 1."""
    run = axes[-1].size if len(axes) > 1 else 0
    if not isinstance(run, int) or run < LEAST_RUN or tile % run or ix.has_values(index):
        return 1
    return run if any(varies(index, axis) for axis in axes[:-1]) and not varies(index, axes[-1]) else 1


def has_every_second(index: Index, axes: Sequence[Axis]) -> bool:
    """Whether neighbours of a loop read elements that are two apart."""
    steps, step = ix.steps(index) if ix.is_plain(index) else {}, 2
    for axis in reversed(axes):
        if steps.get(axis.name) != step or not isinstance(axis.size, int):
            return False
        step *= axis.size
    return True


@dataclass(kw_only=True)
class ProductEmitter(ReductionEmitter):
    """Values of a product of few rows vary along the rows "i" or the columns "j", [16, 1] and [columns, 1], and along
    "r".

    number: of the section that is being written. tiles: the axes that run along "x" and "r" there, and the first
    point of the tile. in_pairs: the results of loads that were taken out of those of their neighbours.
    """

    number: int = -1
    tiles: dict[str, tuple[tuple[Axis, ...], str]] = field(default_factory=dict)
    in_pairs: set[str] = field(default_factory=set)

    def begin_rows(self, number: str) -> None:
        """The points of a program: x = i * columns + j."""
        found, columns = self.plan.rows, self.plan.columns
        blocks = self.dim((points_of(found.many) + (columns - 1)) // columns)
        self.put(f"first = {number} % {blocks} * {columns}")
        if found.batch:
            self.put(f"line = {number} // {blocks}")
            self.split("line", found.batch, frozenset())
        self.put("x = tl.arange(0, XBLOCK)[:, None]")
        inside = []
        for way, start, axes, tile, place in (
            ("i", "", found.few, MOST_ROWS, f"x // {columns}"),
            ("j", "first + ", found.many, columns, f"x % {columns}"),
        ):
            self.put(f"{way} = {start}{self.widened(f'tl.arange(0, {tile})[:, None]')}")
            self.fit(way, axes, tile)
            self.put(f"x{way} = {start}{self.widened(f'({place})')}")
            self.split(f"x{way}", axes, X)
            if way not in self.full:
                inside.append(f"(x{way} < {self.dim(points_of(axes))})")
        if inside:
            self.put(f"xmask = {' & '.join(inside)}")
        else:
            self.full |= {"x"}

    def product_loop(self, number: int, section: Section) -> None:
        """The loop over tiles, and the sums of it."""
        found, columns = self.plan.rows, self.plan.columns
        totals = {total: f"a{number}_{n}" for n, total in enumerate(found.products)}
        for name in totals.values():
            self.put(f"{name} = tl.zeros([{MOST_ROWS}, {columns}], tl.float32)")
        names, spread = dict(self.names), dict(self.spread)
        self.split("i", found.few)
        self.split("j", found.many)
        count = self.dim(points_of(section.axes))
        self.put(f"for base in tl.range(0, {count}, RBLOCK, num_stages={self.plan.num_stages[number]}):")
        indent, self.indent = self.indent, self.indent + "    "
        self.inner("base", section.axes)
        products = {one.operand.name for one in section.statements if isinstance(one, Reduce)}
        own = tuple(one for one in section.statements if products.isdisjoint(results(one)))
        self.statements(own, frozenset("ijr"))
        for total, (left, right) in found.products.items():
            a, b, made = self._tile(left, MOST_ROWS), self._tile(right, columns), totals[total]
            match found.form:
                case "parts":
                    text = f"product_in_parts({a}, {b}, {made})"
                case "half":
                    text = f"tl.dot({a}, tl.trans({b}), {made})"
                case _:
                    text = f"tl.dot({a}, tl.trans({b}), {made}, input_precision='tf32x3')"
            self.put(f"{made} = {text}")
        self.indent = indent
        self.names, self.spread = names, spread
        for total, name in totals.items():
            self.define(total, f"tl.reshape({name}, [XBLOCK, 1])", X)

    def _tile(self, value: str, rows: int) -> str:
        """An operand over all of a tile, 0 behind the end of the loop."""
        mask = self.bounds(frozenset("r"))
        text = f"tl.where({mask}, {self.names[value]}, 0)" if mask else self.names[value]
        return f"tl.broadcast_to({text}, [{rows}, RBLOCK])"

    def loads_packed(self, load: Load) -> bool:
        """Whether it has loaded what a statement of the loop loads in such a way."""
        axes, start = self.tiles["r"]
        if load.result in self.in_pairs:
            return True
        if load.mask is not None or load.dtype == "bool" or "r" not in self.full:
            return False
        along, run = self.index_spread(load.index), run_of(load.index, axes, self.plan.inner)
        if run > 1:
            text = self.at_every(run, load.index, "r")
            self.define(load.result, f"repeated(tl.load({self.pointer[load.buffer]} + ({text})), {run})", along)
            return True
        pair = self.pair_of(load) if has_every_second(load.index, axes) else ()
        if pair:
            outer = self.index(ix.inline(pair[0].index, {axis.name: ix.ZERO for axis in axes}))
            lanes = self.widened("tl.arange(0, 2 * RBLOCK)[None, :]")
            text = " + ".join([outer, *([f"2 * ({start})"] if start else []), lanes])
            both = f"b{self.made}"
            self.put(f"{both} = in_pairs(tl.load({self.pointer[load.buffer]} + ({text})))")
            for number, one in enumerate(pair):
                self.define(one.result, f"{both}[{number}]", along)
                self.in_pairs.add(one.result)
        return bool(pair)

    def pair_of(self, load: Load) -> tuple[Load, ...]:
        """A load and that of the element before or behind it, in the order of memory; nothing if there is none."""
        loads = select((self.kernel.sections[self.number],), Load)
        same = [one for one in loads if (one.buffer, one.mask) == (load.buffer, None)]
        for step in (1, -1):
            for one in same:
                if one.index == Index(load.index.constant + step, load.index.terms):
                    return (load, one)[::step]
        return ()
