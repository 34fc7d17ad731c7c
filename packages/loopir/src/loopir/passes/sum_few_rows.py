"""Pass: on a GPU, sums at indices of few rows and few columns are one sum for each, instead of additions that meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loopir.passes.expand import Expander
from loopir.passes.split_nests import Writer, is_on_gpu, split_nests
from loopir.schedule import Names, Rewriting, Schedule, axis_sizes, substitute_axes
from stagewire import index as ix
from stagewire.graph import Ref
from stagewire.loop import Axis, Decision, IndexValue, Kernel, Load, Operand, Section, Statement, Store
from stagewire.sizes import rough
from stagewire.statements import makers, place_on, points_of, used_axes
from stagewire.types import DType


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

    def _split(self, nest: Kernel, state: Rewriting) -> tuple[Kernel, ...] | None:
        if len(nest.sections) != 1 or nest.sections[0].axes or not is_on_gpu(nest, state.buffers):
            return None
        (section,) = nest.sections
        writes = [s for s in section.statements if isinstance(s, Store)]
        if len(writes) != 1 or writes[0].mode != "atomic_add" or writes[0].mask is not None:
            return None
        write = writes[0]
        rows = [d for d, coordinate in enumerate(write.index) if ix.has_values(coordinate)]
        columns = [ix.single_axis(c) for d, c in enumerate(write.index) if d not in rows]
        if len(rows) != 1 or None in columns or write.index[rows[0]] != ix.value(_value(write, rows[0])):
            return None
        size = state.buffers[write.buffer].type.shape[rows[0]]
        few = rough(points_of(tuple(axis for axis in nest.axes if axis.name in columns)), state.hints) < self.columns
        many = rough(points_of(nest.axes), state.hints) >= self.points
        if not isinstance(size, int) or size > self.rows or not few or not many:
            return None
        state.decisions.append(Decision("refused", (nest.name,), f"{size} rows at which many points would meet"))
        return _sums(nest, write, rows[0], size, state)


def _value(write: Store, dimension: int) -> str:
    return next(iter(ix.values_of(write.index[dimension])))


def _sums(nest: Kernel, write: Store, dimension: int, size: int, state: Rewriting) -> tuple[Kernel, ...]:
    """The nests of the terms and of the rows that they are for, and that of the sums."""
    names, (section,), chosen = state.names, nest.sections, _value(write, dimension)
    fixed = {ix.single_axis(c) for c in write.index}
    columns = tuple(axis for axis in nest.axes if axis.name in fixed)
    loop = tuple(axis for axis in nest.axes if axis.name not in fixed)
    dtype = state.buffers[write.buffer].type.dtype

    def kept(what: str, value: Operand, dtype: DType, axes: tuple[Axis, ...], made: Sequence[Statement]) -> Kernel:
        name = state.add_buffer(nest, what, dtype, tuple(axis.size for axis in axes))
        store = Store(name, place_on(axes), value)
        return Kernel(f"{nest.name}_{what}", axes, (Section((), (*made, store)),), nest.origins, nest.line)

    value = {write.value.name} if isinstance(write.value, Ref) else set[str]()
    terms = kept("terms", write.value, dtype, (*columns, *loop), makers(section.statements, value))
    chain = Writer(names, makers(section.statements, {chosen}))
    along = {name for statement in chain for name in used_axes(statement)}
    narrow = chain.compute("convert", Ref(chosen), dtype="int32")
    rows = kept("rows", narrow, "int32", tuple(axis for axis in (*columns, *loop) if axis.name in along), chain)

    row, made = Axis(names("a"), size), Writer(names)
    term, wanted = (
        made.add(Load, one.name, place_on(one.axes), kind) for one, kind in ((terms, dtype), (rows, "int32"))
    )
    hit = made.compute("eq", wanted, made.add(IndexValue, ix.axis(row.name), "int32"))
    part = made.compute("where", hit, term, False if dtype == "bool" else 0, dtype=dtype)
    total = made.reduce("sum", part, dtype)
    where = tuple(ix.axis(row.name) if d == dimension else c for d, c in enumerate(write.index))
    sections = (Section(loop, tuple(made)), Section((), (Store(write.buffer, where, total, "atomic_add"),)))
    sums = Kernel(nest.name, (row, *columns), sections, nest.origins, nest.line)
    return terms, _renamed(rows, names), _renamed(sums, names)


def _renamed(nest: Kernel, names: Names) -> Kernel:
    """The nest with axes and values of its own."""
    again = {name: Axis(names("a"), size) for name, size in axis_sizes(nest).items()}
    places = {old: ix.axis(new.name) for old, new in again.items()}
    renamed = substitute_axes(nest, places, {old: (new,) for old, new in again.items()})
    return Expander({}, names).nest(renamed)
