"""Which item must run before which, kept up to date while items are merged."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush

from loopir.errors import DependenceCycle
from loopir.schedule import Schedule
from stagewire.graph import ORDERED
from stagewire.loop import Extern
from stagewire.statements import reads_of, writes_of


class Dependences:
    """Direct dependences and ancestor sets (bit masks) of groups of items; a group is named by one of its members.

    alive: the groups of items that somebody has asked about, or of earlier ones, with the last item of each; the masks
    of others are not there yet, or of no use any more.
    """

    def __init__(self, schedule: Schedule) -> None:
        count = len(schedule.items)
        self.group = list(range(count))
        self.members = [1 << n for n in range(count)]
        self.direct: list[set[int]] = [set() for _ in range(count)]
        self.ancestors: list[int] = []
        self.alive: dict[int, int] = {}
        self.writers: dict[str, list[int]] = {}
        self._collect(schedule)

    def _collect(self, schedule: Schedule) -> None:
        ordered: int | None = None
        for number, item in enumerate(schedule.items):
            needs = self.direct[number]
            for name in set(reads_of(item)):
                base = schedule.buffers[name].base if name in schedule.buffers else None
                needs.update(self.writers.get(base or name, ()))
            for name in set(writes_of(item)):
                needs.update(self.writers.get(name, ()))
                self.writers.setdefault(name, []).append(number)
            if isinstance(item, Extern) and item.effect in ORDERED:
                if ordered is not None:
                    needs.add(ordered)
                ordered = number
            needs.discard(number)

    def _reach(self, last: int) -> None:
        """Have the masks of all items up to one."""
        for number in range(len(self.ancestors), last + 1):
            mask = 0
            for need in self.direct[number]:
                group = self.find(need)
                mask |= self.ancestors[group] | self.members[group]
            self.ancestors.append(mask)
            self.alive[number] = number

    def find(self, number: int) -> int:
        """The group that an item is in now."""
        while self.group[number] != number:
            self.group[number] = self.group[self.group[number]]
            number = self.group[number]
        return number

    def needs(self, group: int) -> set[int]:
        """Groups that must run before."""
        return {self.find(n) for n in self.direct[group]} - {group}

    def may_merge(self, a: int, b: int) -> bool:
        """Whether no third group lies between the two."""
        self._reach(max(a, b))
        for first, second in ((a, b), (b, a)):
            if not self.ancestors[second] & self.members[first]:
                continue
            if any(self.ancestors[need] & self.members[first] for need in self.needs(second)):
                return False
        return True

    def precedes(self, a: int, b: int) -> bool:
        """Whether group a must run before group b."""
        self._reach(max(a, b))
        return bool(self.ancestors[b] & self.members[a])

    def merge(self, a: int, b: int) -> None:
        """Put group b into group a."""
        self._reach(max(a, b))
        members = self.members[a] | self.members[b]
        ancestors = (self.ancestors[a] | self.ancestors[b]) & ~members
        self.group[b] = a
        self.members[a] = members
        self.direct[a] = self.direct[a] | self.direct[b]
        extended = ancestors | members
        self.alive[a] = max(self.alive[a], self.alive.pop(b))
        first = (members & -members).bit_length() - 1
        masks = self.ancestors
        for number in [number for number, last in self.alive.items() if last > first and masks[number] & members]:
            masks[number] |= extended
        masks[a] = ancestors

    def order(self) -> list[int]:
        """The groups in an order that respects every dependence, otherwise as they came."""
        groups = {self.find(n) for n in range(len(self.group))}
        sorter = TopologicalSorter({group: self.needs(group) for group in groups})
        try:
            sorter.prepare()
        except CycleError as error:
            raise DependenceCycle(f"items {error.args[1]} wait for each other") from error
        ready, result = list[tuple[int, int]](), list[int]()
        while sorter.is_active():
            for group in sorter.get_ready():
                heappush(ready, ((self.members[group] & -self.members[group]).bit_length(), group))
            _, group = heappop(ready)
            result.append(group)
            sorter.done(group)
        return result
