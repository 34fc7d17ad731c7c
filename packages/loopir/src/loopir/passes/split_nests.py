"""What passes share that make several nests of a long one, so that a GPU has enough to do side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from loopir.schedule import Item, Names, Rewriting, Schedule
from stagewire import index as ix
from stagewire import loop
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.loop import Buffer, Kernel, Load, Section
from stagewire.statements import writes_of
from stagewire.types import DType


def split_nests(schedule: Schedule, split: Callable[[Kernel, Rewriting], Iterable[Kernel] | None]) -> Schedule:
    """The schedule with what `split` makes of each nest in its place; None: the nest stays."""
    state, items = Rewriting(schedule), list[Item]()
    for item in schedule.items:
        items.extend((split(item, state) if isinstance(item, Kernel) else None) or (item,))
    return state.with_items(items)


class Writer(list[loop.Statement]):
    """Statements in order: each method adds one, whose result has a new name, and gives what it defines."""

    def __init__(self, names: Names, statements: Iterable[loop.Statement] = ()) -> None:
        super().__init__(statements)
        self.names = names

    def add(self, kind: Callable[..., loop.Statement], *fields: Any) -> Ref:
        """A statement with one result, which is its first field."""
        name = self.names("v")
        self.append(kind(name, *fields))
        return Ref(name)

    def compute(self, op: str, *operands: loop.Operand, dtype: DType = "bool") -> Ref:
        return self.add(loop.Compute, op, operands, dtype)

    def reduce(self, kind: loop.ReduceKind, operand: loop.Operand, dtype: DType) -> Ref:
        name = self.names("v")
        self.append(loop.Reduce((name,), kind, operand, dtype))
        return Ref(name)


def divisor(size: Dim, most: int) -> int:
    """The greatest divisor of a size that is at most so much."""
    assert isinstance(size, int)
    return max(d for d in range(1, min(most, size) + 1) if size % d == 0)


class Ways(NamedTuple):
    """The axes of a loop along which memory runs, and the outer ones, in loads that vary with both."""

    rows: frozenset[str]
    columns: frozenset[str]


def ways_of(nest: Kernel, section: Section, buffers: Mapping[str, Buffer]) -> Ways:
    """Along what memory runs in a loop of a nest."""
    inner, outer = {axis.name for axis in section.axes}, {axis.name for axis in nest.axes}
    rows, columns = set[str](), set[str]()
    for statement in section.statements:
        if isinstance(statement, Load):
            offset = ix.linear(statement.index, buffers[statement.buffer].type.stride)
            steps = ix.steps(offset)
            is_shared = outer and not outer & set(steps)  # by all outer points
            if not is_shared:
                rows |= {name for name in inner if steps.get(name) == 1}
            if not inner.isdisjoint(steps):
                columns |= {name for name in outer if steps.get(name) == 1}
    return Ways(frozenset(rows), frozenset(columns))


def is_on_gpu(nest: Kernel, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a nest writes memory of a GPU."""
    written = writes_of(nest)
    return bool(written) and not buffers[written[0]].type.device.startswith("cpu")
