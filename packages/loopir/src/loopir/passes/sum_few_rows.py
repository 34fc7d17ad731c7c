"""Pass: on a GPU, sums at indices of few rows and few columns are one sum for each, instead of additions that meet."""

from __future__ import annotations

from dataclasses import dataclass

from loopir import index as ix
from loopir.nest import Block, Nest, Read, Schedule, Statement, Write, makers_of
from loopir.passes.expand import Expander
from loopir.passes.split_nests import Splitting, is_on_gpu, points_of, split_nests
from loopir.rewrite import substitute_axes
from stagewire.graph import Ref
from stagewire.loop import Axis, Compute, Decision, IndexValue, Reduce
from stagewire.sizes import rough


@dataclass(frozen=True)
class SumFewRows:
    """Before: x[index[i], j] += term[i, j] for few rows and columns: a device makes these additions one by one.
    After: the terms are in memory, and x[k, j] += the sum over i of where(index[i] == k, term[i, j], 0): what the bias
    of an attention by relative positions gets as its gradient.

    rows: most rows; columns: of these fewer, so that most lanes of a warp would meet others; points: least additions.
    """

    name = "sum_few_rows"
    rows: int = 64
    columns: int = 32
    points: int = 2**16

    def run(self, schedule: Schedule) -> Schedule:
        return split_nests(schedule, self._split)

    def _split(self, nest: Nest, state: Splitting) -> tuple[Nest, Nest] | None:
        if len(nest.blocks) != 1 or nest.blocks[0].axes or not is_on_gpu(nest, state.buffers):
            return None
        (block,) = nest.blocks
        writes = [s for s in block.statements if isinstance(s, Write)]
        if len(writes) != 1 or writes[0].mode != "atomic_add" or writes[0].mask is not None:
            return None
        write = writes[0]
        rows = [d for d, coordinate in enumerate(write.coordinates) if ix.has_values(coordinate)]
        columns = [ix.single_axis(c) for d, c in enumerate(write.coordinates) if d not in rows]
        if len(rows) != 1 or None in columns or write.coordinates[rows[0]] != ix.value(_value(write, rows[0])):
            return None
        size = state.buffers[write.buffer].type.shape[rows[0]]
        few = rough(points_of(tuple(axis for axis in nest.axes if axis.name in columns)), state.hints) < self.columns
        many = rough(points_of(nest.axes), state.hints) >= self.points
        if not isinstance(size, int) or size > self.rows or not few or not many:
            return None
        state.decisions.append(Decision("refused", (nest.name,), f"{size} rows at which many points would meet"))
        return _sums(nest, write, rows[0], size, state)


def _value(write: Write, dimension: int) -> str:
    return next(iter(ix.values_of(write.coordinates[dimension])))


def _sums(nest: Nest, write: Write, dimension: int, size: int, state: Splitting) -> tuple[Nest, Nest]:
    """The nest of the terms, and that of their sums."""
    names, (block,) = state.names, nest.blocks
    fixed = {ix.single_axis(c) for c in write.coordinates}
    columns = tuple(axis for axis in nest.axes if axis.name in fixed)
    loop = tuple(axis for axis in nest.axes if axis.name not in fixed)
    dtype = state.buffers[write.buffer].type.dtype
    order = (*columns, *loop)
    terms = state.add_buffer(nest, "terms", dtype, tuple(axis.size for axis in order))
    place = tuple(ix.axis(axis.name) for axis in order)
    value = {write.value.name} if isinstance(write.value, Ref) else set[str]()
    first = Block((), (*makers_of(block, value), Write(terms, place, write.value)))

    row, (read, at, hit, term, total) = Axis(names("a"), size), (names("v") for _ in range(5))
    chosen = _value(write, dimension)
    body: tuple[Statement, ...] = (
        *makers_of(block, {chosen}),
        Read(read, terms, place, dtype),
        IndexValue(at, ix.axis(row.name), "int64"),
        Compute(hit, "eq", (Ref(chosen), Ref(at)), "bool"),
        Compute(term, "where", (Ref(hit), Ref(read), False if dtype == "bool" else 0), dtype),
        Reduce((total,), "sum", Ref(term), dtype),
    )
    where = tuple(ix.axis(row.name) if d == dimension else c for d, c in enumerate(write.coordinates))
    store = Write(write.buffer, where, Ref(total), "atomic_add")
    sums = Nest(nest.name, (row, *columns), (Block(loop, body), Block((), (store,))), nest.origins, nest.line)
    again = {axis.name: Axis(names("a"), axis.size) for axis in order}
    renamed = substitute_axes(
        sums, {old: ix.axis(new.name) for old, new in again.items()}, {old: (new,) for old, new in again.items()}
    )
    return (
        Nest(f"{nest.name}_terms", nest.axes, (first,), nest.origins, nest.line),
        Expander({}, names).nest(renamed),
    )
