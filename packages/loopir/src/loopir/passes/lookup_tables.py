"""Lookup tables: small buffers that many points read, and that cost more to recompute at each point than a launch."""

from __future__ import annotations

from collections.abc import Container, Mapping

from loopir.passes.definitions import Definition, instructions_of
from loopir.schedule import Schedule
from stagewire.loop import Axis, Extern, Index, Kernel, Load
from stagewire.sizes import estimate
from stagewire.statements import statements_of, writes_of
from stagewire.types import numel

MOST = 4
"""Estimated recomputations of a value that several users read at every point of one nest."""

ENDLESS = 10**6
"""Instructions: longer chains of definitions are not followed."""


def lookup_tables(
    schedule: Schedule,
    definitions: Mapping[str, Definition],
    forced: Container[str],
    views: Container[str],
    spread: int,
    costly: int,
    launch: int,
) -> dict[str, int]:
    """The tables on GPUs, with the instructions that computing each once leaves undone.

    Of a chain of small buffers it is the last: what it is made of is computed for it alone. forced: buffers that are in
    memory anyway; views: those that show another. spread: points of one nest that read each element; costly: least
    instructions of one; launch: those that the device does while a kernel begins and ends.
    """
    instructions = _instructions(schedule, definitions, forced)
    evaluations: dict[str, int] = {}
    widest: dict[str, int] = {}
    found: dict[str, int] = {}
    for item in reversed(schedule.items):
        if isinstance(item, Extern):
            continue
        target = next(iter(writes_of(item)), "")
        points = wide = points_of(item)
        if target in views and target in instructions:
            points, wide = evaluations.get(target, 0), widest.get(target, 0)
        elif target in instructions:
            uses, type = evaluations.get(target, 0), schedule.buffers[target].type
            elements = estimate(numel(type.shape))
            saved = instructions[target] * (uses - elements)
            is_table = instructions[target] >= costly and widest.get(target, 0) >= spread * elements
            if is_table and saved >= launch and not type.device.startswith("cpu"):
                found[target] = saved
            else:
                points = max(points, min(uses, MOST * points))
        for name, places in places_of(item).items():
            evaluations[name] = evaluations.get(name, 0) + points * places
            widest[name] = max(widest.get(name, 0), wide)
    return found


def _instructions(schedule: Schedule, definitions: Mapping[str, Definition], forced: Container[str]) -> dict[str, int]:
    """What an element of each buffer that may be computed where it is read takes, if all of those are."""
    found: dict[str, int] = {}
    for item in schedule.items:
        for target in () if isinstance(item, Extern) else writes_of(item)[:1]:
            if target in definitions and target not in forced:
                pieces = [piece.statements for piece in definitions[target].pieces]
                inner = [s.buffer for statements in pieces for s in statements if isinstance(s, Load)]
                count = sum(map(instructions_of, pieces)) + sum(found.get(name, 0) for name in inner)
                found[target] = min(count, ENDLESS)
    return found


def places_of(nest: Kernel) -> dict[str, int]:
    """In how many places a point reads each buffer."""
    found: dict[str, set[tuple[Index, ...]]] = {}
    for statement in statements_of(nest):
        if statement.__class__ is Load:
            found.setdefault(statement.buffer, set()).add(statement.index)  # type: ignore[union-attr]
    return {name: len(places) for name, places in found.items()}


def points_of(nest: Kernel) -> int:
    """How often the innermost statements run."""
    inner = max([_product(section.axes) for section in nest.sections], default=1)
    return _product(nest.axes) * inner


def _product(axes: tuple[Axis, ...]) -> int:
    count = 1
    for axis in axes:
        count *= estimate(axis.size)
    return count
