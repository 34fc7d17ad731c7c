"""Parts of a graph that repeat themselves, layers of a deep network, say: a few copies are scheduled, the rest copied.

    graph     prefix copy_0 ... copy_n suffix       copies are equal up to the names of what they read and make
    shortened prefix copy_0 ... copy_KEPT suffix    the suffix reads what the last copies make
    loops     steps, a block of which is what the block behind it is one copy further on
    expanded  the steps, with that block once more for each copy that was left out

Buffers hold values of the graph under their names (or are named after one: `add_3_padded`). So a step is right that
computes what nodes of the graph compute, and it is right as well some copies further on where all of these nodes are
of copies that read what the others read (`_zones`). What is left to show of the expanded steps is that they make all
that is read, before it is read (`_is_complete`). Where they do not, or where the passes treat no two copies alike,
the whole graph is scheduled.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from stagewire.graph import ORDERED, Arg, Graph, definitions, node_references, references
from stagewire.graph_passes import rename, rename_node
from stagewire.loop import Buffer, Decision, Extern, Free, Kernel, LoopGraph, Step
from stagewire.repetition import repetitions
from stagewire.statements import buffers_of, map_buffers, reads_of, writes_of
from stagewire.types import TensorType

KEPT = 4
"""Copies that are scheduled: the first and the last have other neighbours, and two alike stand between them."""

FEWEST = 8
"""Copies from which that takes less time."""

_NUMBERED = re.compile(r"\w+_\w+")
"""Words of a reason that are names, and none of English."""

T = TypeVar("T")
Key = tuple[tuple[str, ...], int]


@dataclass
class Repeat:
    """A part of `graph`: `count` copies of `period` nodes, from number `start` on.

    uses: what each node uses. rows: names of what corresponds to each other in copies, in order; place: for a name its
    row and its position there. copy_of: for what the nodes of a copy make, its number. defined: every name of the
    graph. is_paired: see `in_pairs`.
    """

    graph: Graph
    uses: Sequence[tuple[str, ...]]
    start: int
    period: int
    count: int
    is_paired: bool = False
    rows: list[list[str]] = field(default_factory=list)
    place: dict[str, tuple[list[str], int]] = field(default_factory=dict)
    copy_of: dict[str, int] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)
    _moved: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def left_out(self) -> int:
        """How many copies are not scheduled."""
        return self.count - KEPT

    def moved(self, name: str, copies: int) -> str:
        """The name of what is to a later copy as `name` is to its own; what belongs to no copy stays.

        Raises `_Irregular` where there is none.
        """
        found = self._moved.get((name, copies))
        if found is None:
            found = self._moved[name, copies] = self._move(name, copies)
        return found

    def _move(self, name: str, copies: int) -> str:
        base = self.value_of(name)
        if base not in self.place:
            return name
        row, position = self.place[base]
        if not 0 <= position + copies < len(row):
            raise _Irregular
        return row[position + copies] + name[len(base) :]

    def value_of(self, buffer: str) -> str:
        """The value of the graph that a buffer is named after; "" if there is none."""
        while buffer and buffer not in self.defined:
            buffer = buffer.rpartition("_")[0]
        return buffer

    def shortened(self) -> Graph | None:
        """The graph with `KEPT` copies; None if what follows reads others than the last ones, if an output is the input
        of one, or if a copy acts and gives nothing."""
        nodes, last = self.graph.nodes, self.start + self.count * self.period
        used = {name for names in self.uses for name in names}
        used.update(name for arg in self.graph.outputs for name in references(arg))
        acts = (node for node in nodes[self.start : last] if node.effect in ORDERED)
        given = {name for arg in self.graph.outputs for name in references(arg) if name not in self.copy_of}
        if not self.place.keys().isdisjoint(given) or any(used.isdisjoint(one.name for one in n.results) for n in acts):
            return None
        back: dict[str, str] = {}
        for name in {name for names in self.uses[last:] for name in names} & self.place.keys():
            row, position = self.place[name]
            if position - self.left_out < 1:
                return None
            back[name] = row[position - self.left_out]
        found = *nodes[: self.start + KEPT * self.period], *(rename_node(node, back) for node in nodes[last:])
        used = {name for node in found for name in node_references(node)}
        inputs = tuple([one for one in self.graph.inputs if one.name in used or one.name not in self.place])
        return Graph(inputs, found, tuple([arg for arg in self.graph.outputs if self.is_kept(arg)]))

    def in_pairs(self) -> Repeat | None:
        """The same with two copies as one: a sum that layers add to, say, is in memory behind every other layer."""
        if self.is_paired or self.count // 2 < FEWEST:
            return None
        found = Repeat(self.graph, self.uses, self.start, 2 * self.period, self.count // 2, is_paired=True)
        left = {name for name, copy in self.copy_of.items() if copy == 2 * found.count}
        rows = [[name for name in row if name not in left] for row in self.rows]
        found.place_rows([row[first::2] for row in rows for first in (0, 1)])
        return found

    def place_rows(self, rows: list[list[str]]) -> None:
        """Set what corresponds to each other: rows of names, in order of the copies."""
        self.rows = rows
        self.place = {name: (row, position) for row in rows for position, name in enumerate(row)}
        self.defined = set(definitions(self.graph))
        for number in range(self.count * self.period):
            results = self.graph.nodes[self.start + number].results
            self.copy_of.update((one.name, number // self.period) for one in results)

    def is_kept(self, output: Arg) -> bool:
        """Whether an output of the graph is one of the shortened graph."""
        return all(self.copy_of.get(name, 0) < KEPT for name in references(output))

    # ---- the loops

    def expanded(self, short: Graph, loops: LoopGraph) -> LoopGraph | None:
        """The loops of the graph, made of those of the shortened one; None where these do not repeat themselves."""
        inputs = {one.name for one in self.graph.inputs}
        if loops.outputs != short.outputs:
            return None
        try:
            steps = self._spread(loops.steps, writes_of, self._moved_step, self._zones(short, loops))
            buffers = self._spread(
                [one for one in loops.buffers if one.name not in inputs], lambda one: (one.name,), self._moved_buffer
            )
            decisions = self._spread(loops.decisions, lambda one: one.subjects, self._moved_decision)
        except _Irregular:
            return None
        given = {one.name: one for one in loops.buffers if one.name in inputs}
        first = [Buffer(one.name, one.type, "input") for one in self.graph.inputs if isinstance(one.type, TensorType)]
        if any(one != given.get(one.name, one) for one in first):
            return None
        numbered = (
            replace(step, name=f"kernel{n}") if isinstance(step, Kernel) else step for n, step in enumerate(steps)
        )
        found = replace(
            loops, buffers=(*first, *buffers), steps=tuple(numbered), decisions=tuple(decisions),
            inputs=tuple(one.name for one in self.graph.inputs), outputs=self.graph.outputs,
        )  # fmt: skip
        return found if _is_complete(found) else None

    def _spread(
        self, items: Sequence[T], names: Callable[[T], Iterable[str]], move: Callable[[T, int], T],
        zones: Sequence[Set[int]] | None = None,
    ) -> list[T]:  # fmt: skip
        """The items with what was left out; names, move, zones: see `_in_order`.

        Copies stand in order, or the last one first (gradients are given out in the order of the parameters).
        """
        zones = zones or [frozenset[int]()] * len(items)
        keys = _numbered(tuple(names(item)) for item in items)
        where: dict[Key | None, int] = {key: position for position, key in enumerate(keys)}
        signs: list[int] = []
        for position, key in enumerate(keys):
            later, earlier = (where.get(self._key(key, copies), position) - position for copies in (1, -1))
            signs.append((later > earlier) - (later < earlier) or (signs[-1] if signs else 1))
        made: list[T] = []
        for sign, group in groupby(range(len(items)), signs.__getitem__):
            order = [*group][::sign]
            of_group = [items[n] for n in order], [keys[n] for n in order], [zones[n] for n in order]
            made += self._in_order(*of_group, move)[::sign]
        return made

    def _key(self, key: Key, copies: int) -> Key | None:
        """The key of what stands for an item some copies further on; None if there is none."""
        try:
            return self._names(key[0], copies), key[1]
        except _Irregular:
            return None

    def _in_order(
        self, items: Sequence[T], keys: Sequence[Key], zones: Sequence[Set[int]], move: Callable[[T, int], T]
    ) -> list[T]:
        """Items, copies of which stand in order, with what was left out.

        A run of items each of which stands, one copy further on, at one distance behind itself is what repeats itself;
        behind its first copy come those that were left out, and what follows that belongs to the last copies.

        keys: what an item makes, numbered. move: an item, some copies further on. zones: see `_zones`; of the first
        copy nothing is known, and what follows the copies follows the last of them. Raises `_Irregular` where this is
        in the way.
        """
        where: dict[Key | None, int] = {key: position for position, key in enumerate(keys)}
        distances = [where.get(self._key(key, 1), position) - position for position, key in enumerate(keys)]

        def repeats(start: int, distance: int) -> bool:
            """Whether the items of that distance are, one copy further on, those that follow them."""
            return distance > 0 and all(
                distances[n] == distance
                and zones[n + distance].isdisjoint((0, KEPT))
                and _same(move(items[n], 1), items[n + distance])
                for n in range(start, start + distance)
            )

        made: list[T] = []
        position, moves, highest = 0, False, 0
        while position < len(items):
            copy = max((self.copy_of[name] for name in keys[position][0] if name in self.copy_of), default=highest)
            if copy < highest - 1:  # those before were the last copies of something, these are the first of another
                moves, highest = False, 0
            highest = max(copy, highest)
            moves = moves or copy == KEPT - 1
            distance, stays = distances[position], not moves
            if stays and repeats(position, distance):
                block, copies, moves = range(position, position + distance), [*range(self.left_out + 1)], True
            else:
                block, copies = range(position, position + 1), [0 if stays else self.left_out]
            if any((KEPT if stays else 0) in zones[n] for n in block):
                raise _Irregular
            made += [move(items[n], copy) for copy in copies for n in block]
            position = block.stop
        return made

    def _zones(self, short: Graph, loops: LoopGraph) -> list[Set[int]]:
        """For each step where the nodes stand that it computes: numbers of copies, -1 for those of none.

        What is before them and reads the input of a copy is like the first copy: it is right where it stands alone.
        What is behind them and reads something of a copy, has the number `KEPT`.
        """
        bases = {one.name: one.base or one.name for one in loops.buffers}
        values: dict[str, set[str]] = {}
        for name, base in bases.items():
            values.setdefault(base, set()).add(self.value_of(name))
        makers = {one.name: number for number, node in enumerate(short.nodes) for one in node.results}
        operands = [node_references(node) for node in short.nodes]
        called = {name for step in loops.steps if isinstance(step, Extern) for name in step.results}

        def zones(step: Step) -> Set[int]:
            made = {bases[name] for name in writes_of(step)}
            read = {value for name in reads_of(step) if bases[name] not in made for value in values[bases[name]]}
            written = {makers[value] for name in writes_of(step) if (value := self.value_of(name)) in makers}
            behind, pending = set[int](), [*written]
            while pending:
                number = pending.pop()
                if number not in behind:
                    behind.add(number)
                    left = (name for name in operands[number] if name not in read and name not in called)
                    pending += [makers[name] for name in left if name in makers]
            computed, known = set[int](), set(read)
            for number in sorted(behind):
                if number in written or not operands[number] or not known.isdisjoint(operands[number]):
                    computed.add(number)
                    known.update(one.name for one in short.nodes[number].results)
            return {places[number] for number in computed}

        places = []
        for number, names in enumerate(operands):
            copy = (number - self.start) // self.period
            alone = self.place.keys().isdisjoint(names) and not 0 <= copy < KEPT
            places.append(-1 if alone else min(max(copy, 0), KEPT))
        return [zones(step) for step in loops.steps]

    def _moved_step(self, step: Step, copies: int) -> Step:
        if not copies:
            return step
        if isinstance(step, Kernel):
            names = {name: self.moved(name, copies) for name in buffers_of(step)}
            origins = tuple([self.moved(name, copies) for name in step.origins])
            return replace(map_buffers(step, names), origins=origins)
        if isinstance(step, Free):
            return Free(self.moved(step.buffer, copies))
        names = {name: self.moved(name, copies) for name in reads_of(step)}
        args = tuple([rename(arg, names) for arg in step.args])
        kwargs = {key: rename(arg, names) for key, arg in step.kwargs.items()}
        return replace(step, args=args, kwargs=kwargs, results=self._names(step.results, copies))

    def _moved_buffer(self, buffer: Buffer, copies: int) -> Buffer:
        others = [None if name is None else self.moved(name, copies) for name in (buffer.base, buffer.reuse)]
        return Buffer(self.moved(buffer.name, copies), buffer.type, buffer.role, *others)

    def _moved_decision(self, decision: Decision, copies: int) -> Decision:
        reason = decision.reason
        if "_" in reason:
            reason = _NUMBERED.sub(lambda word: self.moved(word[0], copies), reason)
        return Decision(decision.action, self._names(decision.subjects, copies), reason, decision.bytes_saved)

    def _names(self, names: tuple[str, ...], copies: int) -> tuple[str, ...]:
        return tuple([self.moved(name, copies) for name in names])


class _Irregular(Exception):
    """The loops do not repeat themselves as the graph does."""


def _numbered(every: Iterable[tuple[str, ...]]) -> list[Key]:
    """Names of what is made, with how many equal ones stand before them."""
    seen: Counter[tuple[str, ...]] = Counter()
    found = []
    for names in every:
        found.append((names, seen[names]))
        seen[names] += 1
    return found


def _same(one: object, other: object) -> bool:
    """Whether two items are equal but for the number in a kernel's name."""
    return one == (replace(other, name=one.name) if isinstance(one, Kernel) and isinstance(other, Kernel) else other)


def _is_complete(graph: LoopGraph) -> bool:
    """Whether every buffer is declared once, and written before it is read or given out, by one kernel unless several
    write parts of it one after the other."""
    bases = {one.name: one.base or one.name for one in graph.buffers}
    known, closed = set(graph.inputs), set[str]()
    if len(bases) < len(graph.buffers):
        return False
    for step in graph.steps:
        made, used = writes_of(step), reads_of(step)
        if not bases.keys() >= {*made, *used} or not closed.isdisjoint(made):
            return False
        own = known | {bases[name] for name in made} if isinstance(step, Kernel) else known
        if any(bases[name] not in own for name in used):
            return False
        known.update(bases[name] for name in made)
        closed.update(name for name in used if name not in made)
    return all(bases.get(name, name) in known for arg in graph.outputs for name in references(arg))


# ---- finding it


def copied_repeats(
    schedule: Callable[[Graph, frozenset[int], frozenset[int]], LoopGraph], given: Sequence[frozenset[str]],
    graph: Graph, private: frozenset[int], updated: frozenset[int],
) -> LoopGraph:  # fmt: skip
    """What `schedule` makes of a graph and numbers of its outputs, private and updated ones; made of a few copies of
    what repeats itself, as often as something does. given: inputs of one kind, for each kind that `schedule` minds."""
    marks = [(number in private, number in updated) for number in range(len(graph.outputs))]
    tensors = [one for one in graph.inputs if isinstance(one.type, TensorType)]
    repeat = find_repeat(graph, marks, {one.name: (one.type, *[one.name in kind for kind in given]) for one in tensors})
    while repeat is not None and (short := repeat.shortened()) is not None:
        kept = [mark for mark, arg in zip(marks, graph.outputs, strict=True) if repeat.is_kept(arg)]
        roles = [frozenset(number for number, mark in enumerate(kept) if mark[role]) for role in (0, 1)]
        expanded = repeat.expanded(short, copied_repeats(schedule, given, short, *roles))
        if expanded is not None:
            return expanded
        repeat = repeat.in_pairs()
    return schedule(graph, private, updated)


def find_repeat(graph: Graph, marks: Sequence[Hashable], kinds: dict[str, Hashable]) -> Repeat | None:
    """What repeats itself in a graph so often that it pays to schedule a few copies only.

    marks: what else has to be equal of the outputs of a graph. kinds: the same of its inputs; those that are not in it
    are the same in every copy.
    """
    uses = [node_references(node) for node in graph.nodes]
    keys = _keys(graph, uses, marks)
    for start, period, count in repetitions(keys):
        if count >= FEWEST:
            found = _verified(Repeat(graph, uses, start, period, count), kinds)
            if found is not None:
                return found
    return None


def _keys(graph: Graph, uses: Sequence[tuple[str, ...]], marks: Sequence[Hashable]) -> list[int]:
    """A number for each node, equal for nodes that are equal up to the names of values."""
    seen: dict[tuple[bytes, Hashable], int] = {}
    roles: dict[str, list[Hashable]] = {}
    for arg, mark in zip(graph.outputs, marks, strict=True):
        for name in references(arg):
            roles.setdefault(name, []).append(mark)
    encode = msgspec.msgpack.Encoder().encode
    found = []
    for node, names in zip(graph.nodes, uses, strict=True):
        nameless = dict.fromkeys(names, "")
        args = [rename(arg, nameless) for arg in node.args]
        kwargs = {key: rename(arg, nameless) for key, arg in node.kwargs.items()}
        text = encode((node.target, args, kwargs, [one.type for one in node.results], node.line, node.effect))
        role = tuple([tuple(roles[one.name]) for one in node.results if one.name in roles])
        found.append(seen.setdefault((text, role), len(seen)))
    return found


def _verified(repeat: Repeat, kinds: dict[str, Hashable]) -> Repeat | None:
    """The repeat with what corresponds to each other, and with the copies alone whose operands do; None if too few."""
    following: dict[str, str] = {}
    preceding: dict[str, str] = {}
    shared: set[str] = set()
    for copy in range(repeat.count - 1):
        found = _pairs(repeat, copy, following, kinds, shared)
        if found is None or not preceding.keys().isdisjoint(found.values()):
            repeat.count = copy + 1
            break
        following |= found
        preceding |= {new: old for old, new in found.items()}
    if repeat.count < FEWEST:
        return None
    rows = []
    for name in following.keys() - preceding.keys():
        row = [name]
        while (after := following.get(row[-1])) is not None:
            row.append(after)
        rows.append(row)
    repeat.place_rows(rows)
    return repeat


def _pairs(
    repeat: Repeat, copy: int, following: dict[str, str], kinds: dict[str, Hashable], shared: set[str]
) -> dict[str, str] | None:
    """What the copy behind a copy has in place of what that one has, where that is new; None if they differ: only the
    first may read anything.

    shared: what every copy before had, in the same place; grows.
    """
    found: dict[str, str] = {}
    start = repeat.start + copy * repeat.period
    for number in range(start, start + repeat.period):
        node, later = repeat.graph.nodes[number], repeat.graph.nodes[number + repeat.period]
        for old, new in zip(repeat.uses[number], repeat.uses[number + repeat.period], strict=True):
            known = found.get(old) or following.get(old)
            if known is None and old == new:
                shared.add(old)
            elif known is None and old not in shared and old in kinds and kinds[old] == kinds.get(new):
                found[old] = new
            elif known != new and copy:
                return None
        found.update((one.name, other.name) for one, other in zip(node.results, later.results, strict=True))
    return None if len(set(found.values())) < len(found) else found
