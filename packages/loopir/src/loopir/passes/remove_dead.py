"""Pass: drop what nothing needs."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from loopir.schedule import Item, Schedule, output_names
from stagewire.graph import LASTING
from stagewire.loop import Extern, Kernel, Load, Reduce, Section, Statement, Store
from stagewire.loop_ops import may_raise
from stagewire.statements import live_statements, reads_of, statements_of, writes_of


@dataclass(frozen=True)
class RemoveDead:
    """Before: any schedule. After: every write reaches an output or an extern with an effect, every value reaches a
    write or may raise, nests over no points are gone, and every buffer is touched.

    An index that no longer matters for what a nest writes (it reads a tensor of one number) is still checked."""

    name = "remove_dead"

    def run(self, schedule: Schedule) -> Schedule:
        live: set[str] = set()
        for name in output_names(schedule):
            _make_live(name, live, schedule)
        kept: list[Item] = []
        for item in reversed(schedule.items):
            alive = self._extern(item, live) if isinstance(item, Extern) else trim(item, live, schedule)
            if alive is not None:
                for name in reads_of(alive):
                    _make_live(name, live, schedule)
                kept.append(alive)
        touched = live.union(schedule.inputs, *(writes_of(item) for item in kept))
        buffers = {name: buffer for name, buffer in schedule.buffers.items() if name in touched}
        return replace(schedule, buffers=buffers, items=tuple(reversed(kept)))

    def _extern(self, item: Extern, live: set[str]) -> Extern | None:
        """The call without names for results that nothing reads, so that they are given back at once."""
        results = tuple([result if result in live else "" for result in item.results])
        if not any(results) and item.effect not in LASTING:
            return None
        return item if results == item.results else replace(item, results=results)


def _make_live(name: str, live: set[str], schedule: Schedule) -> None:
    """A view that is read keeps its base alive."""
    live.add(name)
    base = schedule.buffers[name].base if name in schedule.buffers else None
    if base is not None:
        live.add(base)


def trim(nest: Kernel, live: set[str], schedule: Schedule) -> Kernel | None:
    """The nest without writes to dead buffers; None if nothing is left. What may raise stays beside writes that do."""
    if any(axis.size == 0 for axis in nest.axes):
        return None
    if not any(_is_live_write(s, live, schedule) for s in statements_of(nest)):
        return None

    def is_needed(statement: Statement) -> bool:
        return _is_live_write(statement, live, schedule) or may_raise(statement)

    needed: set[str] = set()
    sections: list[Section] = []
    changed = False
    for section in reversed(nest.sections):
        if any(axis.size == 0 for axis in section.axes) and not any(isinstance(s, Reduce) for s in section.statements):
            changed = True
            continue
        kept = live_statements(section.statements, is_needed, needed)
        # a section that reads what the nest wrote into a buffer keeps that write alive
        for statement in kept:
            if statement.__class__ is Load:
                live.add(statement.buffer)  # type: ignore[union-attr]
        if len(kept) == len(section.statements):
            sections.append(section)
        else:
            changed = True
            if kept:
                sections.append(Section(section.axes, tuple(kept)))
    if not sections:
        return None
    return Kernel(nest.name, nest.axes, tuple(sections[::-1]), nest.origins, nest.line) if changed else nest


def _is_live_write(statement: Statement, live: set[str], schedule: Schedule) -> bool:
    if statement.__class__ is not Store:
        return False
    buffer = statement.buffer  # type: ignore[union-attr]
    return buffer in live and 0 not in schedule.buffers[buffer].type.shape
