"""Pass: merge nests that share data into one kernel, greedily, most bytes first."""

from __future__ import annotations

from dataclasses import dataclass

from loopir.passes.dependence import Dependences
from loopir.passes.expand import Expander
from loopir.passes.merge_nests import GPU_LIMITS, LIMITS, Limits, Part, is_scalar, merge, part_of
from loopir.schedule import Item, Rewriting, Schedule
from stagewire.loop import Decision, Kernel
from stagewire.sizes import estimate
from stagewire.statements import reads_of, writes_of
from stagewire.types import bytes_of


@dataclass(frozen=True)
class FuseNests:
    """Before: nests that read and write memory between each other. After: a nest that reads what another wrote at the
    same point (vertical), or reads the same buffer at corresponding points (horizontal), is one kernel with it.

    A kernel has the outer axes of its reductions; a pointwise nest becomes a section over the rest of its axes.
    Two nests that combine partial results of one kernel are one, too. Nests of a single point (step counters) are
    gathered though they share nothing: a launch costs more than they do. `attempts` bounds the partners tried for each
    nest; sharing less than `least_bytes` is no reason for a horizontal merge.
    """

    name = "fuse_nests"
    limits: Limits = LIMITS
    gpu_limits: Limits = GPU_LIMITS
    attempts: int = 8
    least_bytes: int = 1024

    def run(self, schedule: Schedule) -> Schedule:
        fusion = _Fusion(schedule, self)
        for number, item in enumerate(schedule.items):
            if isinstance(item, Kernel):
                fusion.place(number)
            fusion.publish(number)
        fusion.gather_scalars()
        expander = Expander({}, fusion.names)
        items: list[Item] = []
        for group in fusion.dependences.order():
            item = fusion.items[group]
            items.append(expander.nest(item) if isinstance(item, Kernel) and group in fusion.changed else item)
        return fusion.with_items(items)


class _Fusion(Rewriting):
    def __init__(self, schedule: Schedule, options: FuseNests) -> None:
        super().__init__(schedule)
        self.options, self.changed = options, set[int]()
        self.items: dict[int, Item] = dict(enumerate(self.schedule.items))
        self.dependences = Dependences(self.schedule)
        self.types = {name: buffer.type for name, buffer in self.schedule.buffers.items()}
        self.bytes = {name: bytes_of(t) for name, t in self.types.items()}
        self.readers: dict[str, list[int]] = {}
        self.reads = {n: tuple(dict.fromkeys(reads_of(item))) for n, item in self.items.items()}
        self.refused: dict[int, set[int]] = {}
        self.parts: dict[int, Part] = {}
        self.results: dict[int, tuple[str, ...]] = {}

    def publish(self, number: int) -> None:
        """Make a nest available to later ones as a reader of its buffers."""
        group = self.dependences.find(number)
        for name in self.reads[number]:
            readers = self.readers.setdefault(name, [])
            if group not in readers[-4:]:
                readers.append(group)

    def place(self, number: int) -> None:
        """Merge one nest (and the kernel it ends up in) with its best partners."""
        current = number
        progress = True
        while progress:
            progress = False
            for partner in self._partners(current)[: self.options.attempts]:
                merged = self._try(partner, current)
                if merged is not None:
                    current = merged
                    progress = True
                    break

    def gather_scalars(self) -> None:
        """Merge nests of a single point with each other, on each device."""
        gathered: dict[str | None, int] = {}
        groups = sorted({self.dependences.find(n) for n in self.items})
        for group in groups:
            item = self.items[group]
            if isinstance(item, Kernel) and is_scalar(item):
                device = self._device(item)
                merged = self._try(gathered[device], group) if device in gathered else None
                gathered[device] = group if merged is None else merged

    def _partners(self, group: int) -> list[int]:
        """Groups that share data with this one, most bytes first."""
        weights: dict[int, int] = {}
        find = self.dependences.find
        for name in self.reads[group]:
            size = estimate(self.bytes[name])
            for writer in map(find, self.dependences.writers.get(name, ())):
                weights[writer] = weights.get(writer, 0) + size * 2 + 1
                for other in self._results(writer):
                    for reader in self.readers.get(other, ())[-1:]:
                        weights.setdefault(find(reader), 0)
            if size >= self.options.least_bytes:
                for reader in map(find, self.readers.get(name, ())[-6:]):
                    weights[reader] = weights.get(reader, 0) + size
        found = [other for other in weights if self._is_partner(other, group)]
        return sorted(found, key=lambda g: (-weights[g], -g))

    def _results(self, group: int) -> tuple[str, ...]:
        """What a kernel of several results writes."""
        found = self.results.get(group)
        if found is None:
            item = self.items[group]
            written = tuple(writes_of(item)) if isinstance(item, Kernel) else ()
            found = self.results[group] = written if len(written) > 1 else ()
        return found

    def _is_partner(self, other: int, group: int) -> bool:
        return other != group and isinstance(self.items[other], Kernel) and other not in self.refused.get(group, ())

    def _try(self, partner: int, current: int) -> int | None:
        for one, other in ((partner, current), (current, partner)):
            self.refused.setdefault(one, set()).add(other)
        if not self.dependences.may_merge(partner, current):
            self._refuse(partner, current, "another step lies between them")
            return None
        first, second = (current, partner) if self.dependences.precedes(current, partner) else (partner, current)
        a, b = self.items[first], self.items[second]
        assert isinstance(a, Kernel)
        assert isinstance(b, Kernel)
        merged = self._window(first, second) or merge(
            self._part(first, a), self._part(second, b), self.types, self.names, self._limits(b)
        )
        if isinstance(merged, str):
            self._refuse(partner, current, merged)
            return None
        self.decisions.append(Decision("fused", (a.name, b.name), _kind(a, b), merged.bytes_saved))
        self.dependences.merge(first, second)
        for other in self.refused.pop(first):  # what has grown may fit: it has more axes in common with others
            self.refused[other].discard(first)
        self.items[first] = merged.nest
        del self.parts[first]
        self.results.pop(first, None)
        self.changed.add(first)
        self.reads[first] = tuple(dict.fromkeys((*self.reads[first], *self.reads[second])))
        return first

    def _limits(self, nest: Kernel) -> Limits:
        return self.options.limits if self._device(nest) in (None, "cpu") else self.options.gpu_limits

    def _device(self, nest: Kernel) -> str | None:
        written = next(iter(writes_of(nest)), None)
        return None if written is None else self.types[written].device

    def _part(self, group: int, nest: Kernel) -> Part:
        if group not in self.parts:
            self.parts[group] = part_of(nest)
        return self.parts[group]

    def _window(self, first: int, second: int) -> str | None:
        """A refusal where the second reads, through a view, what the first writes."""
        for name in self.reads[second]:
            base = self.schedule.buffers[name].base
            if base is not None and any(
                self.dependences.find(w) == first for w in self.dependences.writers.get(base, ())
            ):
                return f"{name} is a window on {base}"
        return None

    def _refuse(self, partner: int, current: int, reason: str) -> None:
        a, b = self.items[partner], self.items[current]
        assert isinstance(a, Kernel)
        assert isinstance(b, Kernel)
        self.decisions.append(Decision("refused", (a.name, b.name), reason))


def _kind(a: Kernel, b: Kernel) -> str:
    written = set(writes_of(a))
    if written.intersection(reads_of(b)):
        return "producer and consumer"
    return "single points" if is_scalar(a) and is_scalar(b) else "read the same data"
