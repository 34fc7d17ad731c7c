"""Pass: a buffer that lives inside one nest is recomputed where it is read, if that is cheaper than memory."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from loopir.passes.expand import Expander
from loopir.schedule import Item, Names, Rewriting, Schedule, output_names
from stagewire import statements
from stagewire.graph import Ref
from stagewire.index import axes_of, values_of
from stagewire.loop import Compute, Decision, Kernel, Load, Scan, Section, Statement, Store
from stagewire.loop_ops import cost


@dataclass(frozen=True)
class RecomputeLocals:
    """Before: a section stores a buffer that only a later section of the same kernel loads, at the same point. After:
    where the value takes little arithmetic and few loads, the later section computes it again and the buffer is gone.

    heavy: cost a point from which memory is cheaper (by device type). A store costs a load more than it saves.
    """

    name = "recompute_locals"
    heavy_cpu: int = 10
    heavy_gpu: int = 60

    def run(self, schedule: Schedule) -> Schedule:
        private = _locals(schedule)
        state = Rewriting(schedule)
        items: list[Item] = []
        for number, item in enumerate(schedule.items):
            for buffer in private.get(number, ()):
                cpu = schedule.buffers[buffer].type.device.startswith("cpu")
                heavy = self.heavy_cpu if cpu else self.heavy_gpu
                changed = _recompute(item, buffer, heavy, state.names)  # type: ignore[arg-type]
                if changed is not None:
                    item = Expander({}, state.names).nest(changed)  # shares what the section computes already
                    state.decisions.append(Decision("inlined", (buffer,), f"cheap to compute again inside {item.name}"))
            items.append(item)
        return state.with_items(items)


def _locals(schedule: Schedule) -> dict[int, list[str]]:
    """By item, the buffers that this nest alone touches, in order of writing."""
    touched: dict[str, set[int]] = {name: {-1} for name in output_names(schedule)}
    for number, item in enumerate(schedule.items):
        for name in (*statements.reads_of(item), *statements.writes_of(item)):
            touched.setdefault(schedule.buffers[name].base or name, set()).add(number)
    found: dict[int, list[str]] = {}
    for number, item in enumerate(schedule.items):
        if isinstance(item, Kernel) and len(item.sections) > 1:
            read = set(statements.reads_of(item))
            alone = [n for n in dict.fromkeys(statements.writes_of(item)) if touched[n] == {number} and n in read]
            if alone:
                found[number] = alone
    return found


def _recompute(nest: Kernel, buffer: str, heavy: int, names: Names) -> Kernel | None:
    """The nest with the reads of `buffer` replaced by what was written, or None where that does not pay."""
    writes = [
        (n, s) for n, section in enumerate(nest.sections) for s in section.statements if _touches(s, buffer, Store)
    ]
    if len(writes) != 1:
        return None
    home, write = writes[0]
    assert isinstance(write, Store)
    readers = [
        n for n, section in enumerate(nest.sections) if any(_touches(s, buffer, Load) for s in section.statements)
    ]
    if write.mode != "set" or write.mask is not None or home in readers or not isinstance(write.value, Ref):
        return None
    needed = statements.makers(nest.sections[home].statements, {write.value.name})
    if any(isinstance(statement, Scan) for statement in needed):
        return None  # it takes every point before
    if _cost(needed, nest.sections[home]) >= heavy or any(
        not _same_point(nest.sections[n], buffer, write) for n in (home, *readers)
    ):
        return None
    if sum(_new_loads(nest, n, needed) for n in readers) > 1 + len(readers):
        return None
    sections = list(nest.sections)
    for number in readers:
        sections[number] = _with_slice(sections[number], buffer, write, needed, names)
    return replace(nest, sections=tuple(sections))


def _cost(needed: list[Statement], section: Section) -> int:
    """Rough instructions at each point of the section; what does not change along its axes costs nothing."""
    axes, along = {axis.name for axis in section.axes}, statements.axes_of_values(needed)
    return sum(cost(s.op) for s in needed if isinstance(s, Compute) and axes & along[s.result])


def _touches(statement: Statement, buffer: str, kind: type[Load] | type[Store]) -> bool:
    return isinstance(statement, kind) and statement.buffer == buffer


def _same_point(section: Section, buffer: str, write: Store) -> bool:
    """Whether every point of the section has an element of its own, and reads no other."""
    axes = {axis.name for axis in section.axes}
    used = {name for coordinate in write.index for name in axes_of(coordinate)}
    reads = [s for s in statements.select((section,), Load) if s.buffer == buffer]
    return axes <= used and all(s.index == write.index and s.mask is None for s in reads)


def _new_loads(nest: Kernel, number: int, needed: list[Statement]) -> int:
    """Loads of the slice that the section does not make anyway, and that change along its own axes."""
    section = nest.sections[number]
    axes = {axis.name for axis in section.axes}
    present = {(s.buffer, s.index) for s in section.statements if isinstance(s, Load)}
    return sum(
        (s.buffer, s.index) not in present
        and (bool(statements.used_axes(s) & axes) or any(values_of(c) for c in s.index if c.terms))
        for s in needed
        if isinstance(s, Load)
    )


def _with_slice(section: Section, buffer: str, write: Store, needed: list[Statement], names: Names) -> Section:
    copies = {name: names("v") for s in needed for name in statements.results(s)}
    assert isinstance(write.value, Ref)
    value = Ref(copies.get(write.value.name, write.value.name))
    gone = {s.result: value for s in statements.select((section,), Load) if s.buffer == buffer}
    kept = [statements.replace_values(s, gone) for s in section.statements if not _touches(s, buffer, Load)]
    return Section(section.axes, (*(statements.rename(s, copies) for s in needed), *kept))
