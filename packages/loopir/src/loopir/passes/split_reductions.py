"""Pass: on a GPU, a long reduction with few results becomes two, so that enough of it runs side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass

from loopir import index as ix
from loopir.nest import Block, Names, Nest, Read, Schedule, Statement, Write
from loopir.passes.split_nests import Splitting, divisor, is_on_gpu, points_of, runs_along_rows, split_nests
from loopir.rewrite import replace_values, substitute_axes
from stagewire.graph import Ref
from stagewire.loop import Axis, Compute, Decision, Operand, Reduce, Scan

Splits = tuple[tuple[Axis, int], ...]
"""Axes, and into how many parts each is split."""

SPLITTABLE = frozenset({"sum", "prod", "max", "min", "any", "all", "xor_sum", "welford"})


@dataclass(frozen=True)
class SplitReductions:
    """Before: few outer points, each with a loop over many. After: a nest of partial results, parts of the loop being
    more outer axes, and a nest that combines them. Parts of welford combine by the parallel formula (Chan, Golub,
    LeVeque 1979), all parts being of one size.

    points: outer points that fill the machine, each being a row along memory. columns: the same where memory runs along
    the outer points, which are then handled many at a time. shortest: the least loop that is left to a part (and the
    same for columns). CPUs split loops among their threads themselves.
    """

    name = "split_reductions"
    points: int = 1024
    columns: int = 32768
    shortest: int = 1024
    shortest_column: int = 128

    def run(self, schedule: Schedule) -> Schedule:
        return split_nests(schedule, self._split)

    def _split(self, nest: Nest, state: Splitting) -> tuple[Nest, Nest] | None:
        looped = [block for block in nest.blocks if block.axes]
        if len(looped) != 1 or nest.blocks[0] is not looped[0] or not is_on_gpu(nest, state.buffers):
            return None
        reduces = [s for s in looped[0].statements if isinstance(s, Reduce)]
        stores = any(isinstance(s, Write | Scan) for s in looped[0].statements)
        if stores or not reduces or any(r.reduction not in SPLITTABLE for r in reduces):
            return None
        along_rows = runs_along_rows(nest, looped[0], state.buffers)
        choice = self._choose(nest, looped[0], along_rows)
        return None if choice is None else _halves(nest, reduces, choice, along_rows, state)

    def _choose(self, nest: Nest, block: Block, along_rows: bool) -> Splits | None:
        """The inner axes to split and into how many parts, if that is worth two kernels."""
        points, shortest = (self.points, self.shortest) if along_rows else (self.columns, self.shortest_column)
        outer, inner = points_of(nest.axes), points_of(block.axes)
        if outer is None or inner is None or not 0 < outer < points:
            return None
        if not along_rows and outer % 2:
            points *= 4  # elements of halves are then loaded one by one, and none ahead
        # rows that half fill the machine are read as fast whole, and what follows them stays in one kernel with them
        wanted = min(points // outer if along_rows else -(-points // outer), inner // shortest)
        if wanted < 2:
            return None
        splits, parts = _parts(block.axes, wanted)
        if not along_rows and 4 * parts < 3 * wanted:
            splits, parts = _parts(block.axes, 2 * wanted)  # better a few programs more than machines that wait
        return splits if splits and (2 * parts >= wanted or parts >= 8) else None


def _parts(axes: tuple[Axis, ...], wanted: int) -> tuple[Splits, int]:
    """Axes and into how many parts to split each, so that there are about as many as wanted: as few axes as do it."""
    splits: list[tuple[Axis, int]] = []
    count, left = 1, list(axes)
    while left and (not splits or 2 * count < wanted):
        most, axis = max(((divisor(axis.size, wanted // count), axis) for axis in left), key=lambda pair: pair[0])
        if most < 2:
            break
        splits.append((axis, most))
        left.remove(axis)
        count *= most
    return tuple(splits), count


def _halves(nest: Nest, reduces: list[Reduce], splits: Splits, along_rows: bool, state: Splitting) -> tuple[Nest, Nest]:
    """The nest of the parts and the nest that combines them; the parts lie as the operand does."""
    names = state.names
    parts = math.prod(count for _, count in splits)
    many = tuple(Axis(names("a"), count) for _, count in splits)
    places, left = {}, {}
    for (axis, count), part in zip(splits, many, strict=True):
        assert isinstance(axis.size, int)
        places[axis.name], left[axis.name] = ix.axis(part.name), ()
        if axis.size != count:  # an axis of one point would hide from later passes that accesses correspond
            rest = Axis(names("a"), axis.size // count)
            places[axis.name] = ix.add(ix.scale(ix.axis(part.name), rest.size), ix.axis(rest.name))
            left[axis.name] = (rest,)
    first = substitute_axes(nest, places, left).blocks[0]
    axes = (*nest.axes, *many) if along_rows else (*many, *nest.axes)
    again = {a.name: Axis(names("a"), a.size) for a in axes}
    total = points_of(first.axes)
    assert total is not None
    stores: list[Statement] = []
    loop: list[Statement] = []
    after: list[Statement] = []
    values: dict[str, Operand] = {}
    for reduce in reduces:
        shape = tuple(axis.size for axis in axes)
        partial = [state.add_buffer(nest, f"part_{name}", reduce.dtype, shape) for name in reduce.results]
        stores += [
            Write(b, tuple(ix.axis(a.name) for a in axes), Ref(v)) for b, v in zip(partial, reduce.results, strict=True)
        ]
        loads = [Read(names("v"), b, tuple(ix.axis(a.name) for a in again.values()), reduce.dtype) for b in partial]
        _combine(reduce, loads, (total, parts), (loop, after), values, names)
    split = {axis.name for axis in many}
    renamed = {old: ix.axis(new.name) for old, new in again.items() if old not in split}
    tail = substitute_axes(
        Nest(nest.name, nest.axes, nest.blocks[1:]), renamed, {old: (again[old],) for old in renamed}
    )
    blocks = [Block((), tuple(after))] if after else []
    blocks += [Block(b.axes, tuple(replace_values(s, values) for s in b.statements)) for b in tail.blocks]
    state.decisions.append(Decision("refused", (nest.name,), f"too few results for a GPU: made of {parts} parts each"))
    whole = Block(tuple(again[axis.name] for axis in many), tuple(loop))
    return (
        Nest(f"{nest.name}_parts", axes, (first, Block((), tuple(stores))), nest.origins, nest.line),
        Nest(nest.name, tail.axes, (whole, *blocks), nest.origins, nest.line),
    )


def _combine(
    reduce: Reduce,
    loads: list[Read],
    counts: tuple[int, int],
    where: tuple[list[Statement], list[Statement]],
    values: dict[str, Operand],
    names: Names,
) -> None:
    """Statements that combine the parts of one reduction; `values` maps its old results to the new.

    counts: the points of a part, and how many parts there are.
    """
    loop, after = where
    count, parts = counts
    results = tuple(names("v") for _ in reduce.results)
    values.update({old: Ref(new) for old, new in zip(reduce.results, results, strict=True)})
    if reduce.reduction != "welford":
        loop += [loads[0], Reduce(results, reduce.reduction, Ref(loads[0].result), reduce.dtype)]
        return
    mean, squares, _ = loads
    apart, within, spread = names("v"), names("v"), names("v")
    loop += [mean, squares]
    loop.append(Reduce((results[0], apart, names("v")), "welford", Ref(mean.result), reduce.dtype))
    loop.append(Reduce((within,), "sum", Ref(squares.result), reduce.dtype))
    after.append(Compute(spread, "mul", (Ref(apart), float(count)), reduce.dtype))
    after.append(Compute(results[1], "add", (Ref(within), Ref(spread)), reduce.dtype))
    after.append(Compute(results[2], "convert", (float(count * parts),), reduce.dtype))
