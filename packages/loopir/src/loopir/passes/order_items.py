"""Pass: the order of items in which the least memory is needed at the worst moment."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from loopir.passes.dependence import Dependences
from loopir.passes.plan_memory import read_until_waits
from loopir.schedule import Item, Schedule
from stagewire.graph import Arg, Ref, references
from stagewire.loop import Buffer, Extern, Kernel
from stagewire.sizes import estimate
from stagewire.statements import reads_of, writes_of
from stagewire.types import TensorType, bytes_of, numel

Peak = tuple[int, int]
"""The most bytes that are alive at an item, and at how many items they are."""


@dataclass(frozen=True)
class OrderItems:
    """Before: items in the order of the program. After: where the most memory is alive, what frees memory runs earlier
    and what takes it runs later, as far as dependences allow; everything else is as it was. In a backward, say, the
    gradient of a weight is computed before that of the operand: it is the last to read what the forward has saved.
    On a GPU every item runs as late as its first use allows, where that takes a part of `worthwhile` less memory. (On a
    CPU kernels that follow each other share threads.) What the CPU computes beside, from its own inputs, runs first:
    kernels of the GPU that then follow each other can share a launch.
    Collectives (effect "sends") are begun early and waited for late, in the order of the program: each may overtake
    what stands between the one before it and itself, as far as it does not need that. A backward begins to sum the
    gradient of a layer's operand, and computes those of its weights meanwhile.

    window: how far an item is moved. rounds: how often. Sizes that are symbols count as something typical.
    """

    name = "order_items"
    window: int = 24
    rounds: int = 256
    worthwhile: float = 1 / 16

    def run(self, schedule: Schedule) -> Schedule:
        if len(schedule.items) < 2:
            return schedule
        order = _Order(schedule, self)
        order.improve()
        if not any(order.fixed) and any(buffer.type.device != "cpu" for buffer in schedule.buffers.values()):
            order.delay()
            order.advance_numbers()
        order.overlap()
        items = tuple([schedule.items[number] for number in order.numbers])
        return schedule if items == schedule.items else replace(schedule, items=items)


@dataclass
class _Order:
    """Items by their numbers in the schedule. `uses`: roots of what an item touches; `size`: bytes of the roots that
    count; `stays`: roots that are alive behind the last item; `given`: those that are alive before the first.
    `needs`: for each item those that must run before it; `held`: bytes that it takes while it runs."""

    schedule: Schedule
    options: OrderItems
    numbers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        schedule = self.schedule
        self.numbers = list(range(len(schedule.items)))
        self.owner: dict[str, str] = {}
        sent = read_until_waits(schedule.items)
        self.uses = [self._touched(item, sent.get(number, ())) for number, item in enumerate(schedule.items)]
        self.stays = {self._root(name) for arg in schedule.outputs for name in references(arg)}
        self.given = set(schedule.inputs)
        counted = {name for names in self.uses for name in names} - (self.given - schedule.ending)
        types = {name: schedule.buffers[name].type for name in counted - schedule.updated if name in schedule.buffers}
        self.size = {name: estimate(bytes_of(type)) for name, type in types.items()}
        self.needs = Dependences(schedule).direct
        self.held = [workspace_bytes(item, schedule.buffers) for item in schedule.items]
        self.fixed = [isinstance(item, Extern) and item.effect == "acts" for item in schedule.items]

    def _root(self, name: str) -> str:
        buffer = self.schedule.buffers.get(name)
        root = name if buffer is None else buffer.base or name
        return self.owner.get(root, root)

    def _touched(self, item: Item, sent: tuple[str, ...]) -> tuple[str, ...]:
        """Roots in order of appearance; the result of a call that may be a view belongs to its operand. sent: what is
        read until a wait."""
        reads = list(dict.fromkeys((*reads_of(item), *sent)))
        if isinstance(item, Extern) and item.effect in ("aliases", "waits") and reads:
            self.owner.update((name, self._root(reads[0])) for name in item.results if name)
        return tuple(dict.fromkeys(self._root(name) for name in (*reads, *writes_of(item))))

    # ---- what is alive

    def improve(self) -> None:
        """Move items about the worst moment until that helps no more."""
        for _ in range(self.options.rounds):
            _, worst, before = self._worst()
            if not self._moved(worst, before):
                return

    def delay(self) -> None:
        """Run each item right before what needs it first, if that pays."""
        before, least = self.numbers, self._worst()[0]
        self.numbers = self._late()
        self.improve()
        if self._worst()[0] > (1 - self.options.worthwhile) * least:
            self.numbers = before

    def _late(self) -> list[int]:
        """The order in which an item follows at once on the last that it needs."""
        count = len(self.numbers)
        needed = set().union(*self.needs)
        found: dict[int, None] = {}
        waiting = [number for number in reversed(range(count)) if number not in needed]
        while waiting:
            missing = [number for number in self.needs[waiting[-1]] if number not in found]
            if missing:
                waiting += sorted(missing, reverse=True)
            else:
                found.setdefault(waiting.pop())
        return list(found)

    def advance_numbers(self) -> None:
        """Run nests on the CPU first that need nothing but each other."""
        first: dict[int, None] = {}
        for number in self.numbers:
            item = self.schedule.items[number]
            on_cpu = all(self.schedule.buffers[name].type.device == "cpu" for name in writes_of(item))
            if isinstance(item, Kernel) and on_cpu and self.needs[number] <= first.keys():
                first[number] = None
        self.numbers = [*first, *(number for number in self.numbers if number not in first)]

    def overlap(self) -> None:
        """Begin collectives before what they do not need, and wait for them behind what does not need them."""
        effects = [item.effect if isinstance(item, Extern) else None for item in self.schedule.items]
        if "sends" not in effects:
            return
        found: dict[int, None] = {}
        late: list[int] = []  # waits that nothing has needed yet
        section: list[int] = []  # what stands behind the last collective

        def run(numbers: Iterable[int]) -> None:
            for number in numbers:
                for wait in [wait for wait in late if wait in self.needs[number]]:
                    late.remove(wait)
                    run([wait])
                found[number] = None

        for number in self.numbers:
            if effects[number] == "waits":
                late.append(number)
            elif effects[number] not in ("sends", "acts"):
                section.append(number)
            else:
                free, waiting = self._apart(section, late)
                first, behind = [*free, *waiting], list[int]()
                if effects[number] == "acts":
                    first += late
                else:
                    needed = self._needed_by(number, first)
                    if not needed.isdisjoint((*waiting, *late)):
                        needed.update(free)  # is computed meanwhile
                    behind = [one for one in first if one not in needed]
                    first = [one for one in first if one in needed]
                run([*first, number, *behind])
                late = [one for one in late if one not in found]
                section = []
        run(itertools.chain(*self._apart(section, late)))
        self.numbers = [*found, *late]

    def _apart(self, section: list[int], late: list[int]) -> tuple[list[int], list[int]]:
        """What of a section needs none of the waits, and what does."""
        waiting = dict.fromkeys(late)
        for number in section:
            if not self.needs[number].isdisjoint(waiting):
                waiting[number] = None
        return [number for number in section if number not in waiting], [*waiting][len(late) :]

    def _needed_by(self, number: int, section: list[int]) -> set[int]:
        """What runs before an item, as far as it is in the section or needed by that."""
        needed = set(self.needs[number])
        for one in reversed(section):
            if one in needed:
                needed |= self.needs[one]
        return needed

    def _worst(self) -> tuple[int, int, list[int]]:
        """The most bytes that are alive at once, the position where they are, and how many are before each."""
        left = self._uses_left(self.numbers, self.stays)
        before: list[int] = []
        live = sum(size for name, size in self.size.items() if name in self.given)
        alive = set(self.given)
        worst, most = 0, -1
        for position, number in enumerate(self.numbers):
            before.append(live)
            at, live = self._step(number, live, alive, left)
            if at > most:
                worst, most = position, at
        return most, worst, before

    def _uses_left(self, numbers: Sequence[int], kept: set[str]) -> dict[str, int]:
        """How often items use each root, and once more if it is alive behind them."""
        left = dict(Counter(name for number in numbers for name in self.uses[number]))
        for name in kept & left.keys():
            left[name] += 1
        return left

    def _step(self, number: int, live: int, alive: set[str], left: dict[str, int]) -> tuple[int, int]:
        """Bytes that are alive at an item, and behind it. A kernel may write where it reads for the last time."""
        made: list[int] = []
        freed: list[int] = []
        for name in self.uses[number]:
            size = self.size.get(name, 0)
            if name not in alive:
                alive.add(name)
                made.append(size)
            left[name] -= 1
            if not left[name]:
                freed.append(size)
        at = live + sum(made)
        behind = at - sum(freed)
        at += self.held[number]
        if isinstance(self.schedule.items[number], Kernel):
            for size in made:
                if size in freed:
                    freed.remove(size)
                    at -= size
        return at, behind

    # ---- moves

    def _moved(self, worst: int, before: list[int]) -> bool:
        """Make the move that leaves least alive about the worst moment; False if none leaves less than now."""
        start = max(0, worst - self.options.window)
        stop = min(len(self.numbers), worst + self.options.window + 1)
        now = self.numbers[start:stop]
        later = {name for number in self.numbers[stop:] for name in self.uses[number]} | self.stays
        earlier = {name for number in self.numbers[:start] for name in self.uses[number]} | self.given

        def peak(numbers: list[int], least: Peak | None = None) -> Peak | None:
            """That of an order; None where it is not below `least`."""
            left = self._uses_left(numbers, later)
            alive, live = set(earlier), before[start]
            found = (-1, 0)
            for number in numbers:
                at, live = self._step(number, live, alive, left)
                if at >= found[0]:
                    found = (at, found[1] + 1 if at == found[0] else 1)
                    if least is not None and found >= least:
                        return None
            return found

        place = worst - start
        least, best = peak(now), None
        for numbers in self._orders(now, place):
            found = peak(numbers, least)
            if found is not None:
                least, best = found, numbers
        if best is None:
            return False
        self.numbers[start:stop] = best
        return True

    def _orders(self, now: list[int], place: int) -> Iterator[list[int]]:
        """Orders in which an item behind the place, with what it needs, runs before it; then those in which an item
        before the place, with what needs it, runs behind it."""
        for other in (*range(place + 1, len(now)), *range(place)):
            start, stop = sorted((other, place))
            section, span = {now[other]}, now[start : stop + 1]
            for number in reversed(span) if other > place else span:
                needed = other > place and any(number in self.needs[one] for one in section)
                if needed or (other < place and self.needs[number] & section):
                    section.add(number)
            if now[place] in section or any(self.fixed[number] for number in span):
                continue
            parts = [[number for number in span if (number in section) == is_moved] for is_moved in (True, False)]
            first, second = parts if other > place else parts[::-1]
            yield [*now[:start], *first, *second, *now[stop + 1 :]]


PLACES = {"aten.convolution.default": (0, 1, 8), "aten.convolution_backward.default": (1, 2, 9)}
"""Where the image, the kernel and the number of groups stand among the arguments."""


def workspace_bytes(call: Item, buffers: Mapping[str, Buffer]) -> int:
    """Bytes: cuDNN computes on images whose channels are fastest, and holds others in that order, results too; images
    of several groups it holds in an order of its own. What is left in memory as it lies: windows of one place, a group
    for each channel (`python benchmarks/peak_memory.py` shows such allocations)."""
    if not isinstance(call, Extern) or call.target not in PLACES:
        return 0
    image, kernel, groups = (call.args[place] if place < len(call.args) else None for place in PLACES[call.target])
    given, weight = _type(image, buffers), _type(kernel, buffers)
    if given is None or weight is None or not given.device.startswith("cuda"):
        return 0
    in_place = groups == given.shape[1] if groups != 1 else given.stride[1] == 1 or numel(weight.shape[2:]) == 1
    if in_place:
        return 0
    other = call.args[0] if call.target.endswith("backward.default") else Ref(call.results[0])
    return sum(estimate(bytes_of(type_)) for type_ in (given, _type(other, buffers)) if type_ is not None)


def _type(arg: Arg, buffers: Mapping[str, Buffer]) -> TensorType | None:
    return buffers[arg.name].type if isinstance(arg, Ref) and arg.name in buffers else None
