"""Which statements of a section may run outside of its innermost loops.

    0  before the section's loops         depends on no axis of the section, nor on the lane
    1  before the loop of the lanes       depends on an axis of the section, but not on the lane
    2  inside

Compilers do this too, but not before they have split the loop on a condition that does not change in it, and a split
loop is no longer vectorised.
"""

from __future__ import annotations

from collections.abc import Mapping

from stagewire.loop import Load, Reduce, Section, Store
from stagewire.statements import results, used_axes, used_values

BEFORE, BETWEEN, INSIDE = 0, 1, 2


def levels(section: Section, lane: str, fixed: Mapping[str, int]) -> list[int]:
    """The level of each statement; `fixed` gives that of values from earlier sections (BEFORE if not in it)."""
    inner = {axis.name: BETWEEN for axis in section.axes}
    inner[lane] = INSIDE
    stored = {s.buffer for s in section.statements if isinstance(s, Store)}
    never_runs = any(axis.size == 0 for axis in section.axes)
    of: dict[str, int] = dict(fixed)
    found: list[int] = []
    for statement in section.statements:
        level = max((of.get(name, BEFORE) for name in used_values(statement)), default=BEFORE)
        level = max((level, *(inner.get(axis, BEFORE) for axis in used_axes(statement))))
        if isinstance(statement, Store | Reduce) or never_runs:
            level = INSIDE
        if isinstance(statement, Load) and statement.buffer in stored:
            level = INSIDE
        found.append(level)
        of |= dict.fromkeys(results(statement), BEFORE if isinstance(statement, Reduce) else level)
    return found
