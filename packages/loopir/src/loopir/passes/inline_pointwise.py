"""Pass: put the definition of a pointwise buffer in the place of its reads, where that saves memory traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loopir.passes.definitions import Definition, cost_of, definitions
from loopir.passes.expand import Expander
from loopir.schedule import Item, Rewriting, Schedule, axis_sizes, output_names, read_by_calls, read_elsewhere
from stagewire import index as ix
from stagewire.expr import Dim
from stagewire.index import axes_of, has_values, steps, values_of
from stagewire.loop import Decision, Extern, Index, Kernel, Load, Statement, Store
from stagewire.loop_ops import may_raise
from stagewire.sizes import estimate
from stagewire.statements import axes_of_values, points_of, reads_of, select, statements_of, used_values, writes_of
from stagewire.types import bytes_of, numel


@dataclass(frozen=True)
class InlinePointwise:
    """Before: one nest a prim. After: a buffer that is cheaper to recompute than to keep is *virtual*: its definition
    stands where it was read, and its nest is gone. Views are always virtual, and so are copies in a wider dtype.

    heavy: cost a point from which nothing is computed twice (by device type; GPUs hide arithmetic).
    largest: most statements, reads and levels that may grow into one expression.
    spread, costly, launch: on a GPU, what takes `costly` instructions and is read at `spread` points of a nest for each
    element is kept where that leaves more instructions undone than the device does while one more kernel begins and
    ends: tables of positions and of their angles, biases of attention.
    """

    name = "inline_pointwise"
    heavy_cpu: int = 10
    heavy_gpu: int = 60
    largest_cost: int = 300
    largest_reads: int = 12
    largest_depth: int = 48
    spread: int = 8
    costly: int = 20
    launch: int = 100_000_000
    gathers: int = 4
    window: int = 3

    def run(self, schedule: Schedule) -> Schedule:
        analysis = _Analysis(schedule, self)
        virtual = analysis.decide()
        expander = Expander(virtual, analysis.names)
        items: list[Item] = []
        for item in schedule.items:
            if isinstance(item, Extern) or analysis.copies_a_kept_copy(item):
                items.append(item)
            elif not all(name in virtual and name not in analysis.forced for name in writes_of(item)):
                items.append(expander.nest(item))
        return analysis.with_items(items)


class Work(NamedTuple):
    """What computing one element takes once virtual operands are expanded. instructions: of a GPU. gathers: places of
    one buffer that an element is made of, at most."""

    cost: int = 0
    depth: int = 0
    reads: frozenset[str] = frozenset()
    instructions: int = 0
    gathers: int = 0


class _Analysis(Rewriting):
    def __init__(self, schedule: Schedule, options: InlinePointwise) -> None:
        super().__init__(schedule)
        self.options = options
        self.definitions = definitions(self.schedule)
        self.forced = output_names(schedule) | read_by_calls(schedule)
        self.elsewhere = read_elsewhere(self.schedule)
        self.windowed: set[str] = set()
        """Buffers that a nest reads at several places of each point."""
        self.users: dict[str, int] = {}
        self.points: dict[str, int] = {}
        self.apart: set[str] = set()
        """Buffers with a reader whose neighbouring points read places that are not next to each other."""
        self.written: set[str] = set()
        """Buffers that are copied for a call or an output: the copy may be the buffer."""
        self._count_users()
        self.tables = self.lookup_tables()
        self.unread = UnreadChecks(self.schedule, self.definitions)

    def _count_users(self) -> None:
        """Users and points of use of every buffer, looking through views, from the last item to the first."""
        for item in reversed(self.schedule.kernels):
            target = next(iter(writes_of(item)), "")
            definition = self.definitions.get(target)
            is_view = definition is not None and self.is_view(definition)
            users, points = (self.users.get(target, 0), self.points.get(target, 0)) if is_view else (0, 0)
            if not is_view or target in self.forced:
                users, points = users + 1, points + runs_of(item)
            if definition is not None and definition.copy_of is not None and target in self.forced | self.written:
                self.written.add(definition.copy_of.buffer)
            self.apart |= _read_apart(item)
            if is_view and target in self.apart:
                self.apart.update(reads_of(item))
            for name, places in places_of(item).items():
                if places >= self.options.window:
                    self.windowed.add(name)
                self.users[name] = self.users.get(name, 0) + users
                self.points[name] = self.points.get(name, 0) + points * places

    def lookup_tables(self) -> dict[str, int]:
        """The tables on GPUs, with the instructions that computing each once leaves undone. Of a chain of small buffers
        it is the last: what it is made of is computed for it alone."""
        instructions = self.instructions()
        views = {name for name, definition in self.definitions.items() if self.is_view(definition)}
        evaluations: dict[str, int] = {}
        widest: dict[str, int] = {}
        found: dict[str, int] = {}
        for item in reversed(self.schedule.kernels):
            target = next(iter(writes_of(item)), "")
            points = wide = runs_of(item)
            if target in views and target in instructions:
                points, wide = evaluations.get(target, 0), widest.get(target, 0)
            elif target in instructions:
                uses, type = evaluations.get(target, 0), self.buffers[target].type
                elements = estimate(numel(type.shape))
                saved = instructions[target] * (uses - elements)
                is_read_wide = widest.get(target, 0) >= self.options.spread * elements
                is_table = instructions[target] >= self.options.costly and is_read_wide
                if is_table and saved >= self.options.launch and not type.device.startswith("cpu"):
                    found[target] = saved
                else:
                    points = max(points, min(uses, MOST * points))
            for name, places in places_of(item).items():
                evaluations[name] = evaluations.get(name, 0) + points * places
                widest[name] = max(widest.get(name, 0), wide)
        return found

    def instructions(self) -> dict[str, int]:
        """What an element of each buffer that may be computed where it is read takes, if all of those are."""
        found: dict[str, int] = {}
        for item in self.schedule.kernels:
            for target in writes_of(item)[:1]:
                if target in self.definitions and target not in self.forced:
                    pieces = [piece.statements for piece in self.definitions[target].pieces]
                    inner = [s.buffer for statements in pieces for s in statements if isinstance(s, Load)]
                    count = sum(cost_of(one, on_gpu=True) for one in pieces) + sum(found.get(name, 0) for name in inner)
                    found[target] = min(count, ENDLESS)
        return found

    def is_view(self, definition: Definition) -> bool:
        """Whether a buffer shows another one, as it is or in a wider dtype: more memory to read."""
        return definition.copy_of is not None or definition.widens(self.schedule.buffers) is not None

    def copies_a_kept_copy(self, nest: Kernel) -> bool:
        """Whether the nest copies, for an extern or an output, what another nest copied so: perhaps a window on it."""
        target = next(iter(writes_of(nest)), "")
        copy = self._kept_copy(target)
        return copy is not None and self._kept_copy(copy.buffer) is not None

    def _kept_copy(self, name: str) -> Load | None:
        definition = self.definitions.get(name) if name in self.forced else None
        return definition.copy_of if definition is not None else None

    def decide(self) -> dict[str, Definition]:
        """The virtual buffers."""
        virtual: dict[str, Definition] = {}
        work: dict[str, Work] = {}
        own: dict[str, Work] = {}
        for item in self.schedule.kernels:
            for name in dict.fromkeys(writes_of(item)):
                definition = self.definitions.get(name)
                if definition is None:
                    continue
                if name not in own:  # nests that define a piece of a buffer each: each may change the answer
                    own[name] = _own_work(definition)
                work[name] = _work(definition, own[name], virtual, work)
                reason = self._why_not(definition, work[name], virtual)
                if reason is None:
                    virtual[name] = definition
                elif self.users.get(name, 0) and name not in self.forced:
                    self.decisions.append(Decision("materialised", (name,), reason))
        self._record(virtual)
        return virtual

    def _why_not(self, definition: Definition, work: Work, virtual: dict[str, Definition]) -> str | None:
        """The reason for keeping the buffer in memory, or None to make it virtual beside those that are."""
        options, name = self.options, definition.buffer
        is_view = self.is_view(definition)
        if name in self.elsewhere:
            return "a number of the CPU that a GPU reads"
        if name in self.forced:
            free = work.cost == 0 and len(work.reads) <= 1 and len(definition.pieces) == 1
            return None if free else "an output or an operand of an extern"
        if self.unread.of(definition, virtual):
            return "what may raise is computed also where nobody reads it"
        if name in self.windowed and self._is_costly_to_window(definition):
            return "read at several places of each point, under masks or across its memory"
        if is_view and work.depth <= options.largest_depth:
            return None
        if work.depth > options.largest_depth or work.cost > options.largest_cost:
            return f"an expression of cost {work.cost} and depth {work.depth} is large enough for a kernel"
        if not work.reads and work.cost <= 8:
            return None
        if len(work.reads) > options.largest_reads:
            return f"reads {len(work.reads)} buffers"
        return self._traffic(definition, work)

    def _is_costly_to_window(self, definition: Definition) -> bool:
        """Whether the vectors of a CPU read what a buffer is made of under masks, or in steps where they would read the
        buffer as it lies."""
        type, piece = self.buffers[definition.buffer].type, definition.pieces[0]
        loads = [s for s in piece.statements if isinstance(s, Load)]
        if not type.device.startswith("cpu"):
            return False
        fastest = next((a.name for a, step in zip(piece.places, type.stride, strict=True) if a and step == 1), "")
        strides = [ix.coefficient(ix.linear(s.index, self.buffers[s.buffer].type.stride), fastest) for s in loads]
        return any(s.mask is not None for s in loads) or any(step not in (0, 1, None) for step in strides)

    def _traffic(self, definition: Definition, work: Work) -> str | None:
        options, name = self.options, definition.buffer
        type = self.schedule.buffers[name].type
        elements = estimate(numel(type.shape))
        users, ratio = self.users.get(name, 0), self.points.get(name, 0) / max(elements, 1)
        on_cpu = type.device.startswith("cpu")
        heavy = options.heavy_cpu if on_cpu else options.heavy_gpu
        if on_cpu and work.cost >= heavy and ratio >= 0.9 and name in self.apart:
            return f"cost {work.cost}, read in steps: vectors compute it faster where it lies in a row"
        if ratio <= 1:
            return None
        if work.cost >= heavy and ratio >= 2:
            return f"cost {work.cost} at {ratio:.3g} uses of every element"
        if name in self.tables and work.instructions >= options.costly:
            return f"{self.tables[name]} instructions for {ratio:.3g} uses of every element"
        if not on_cpu and ratio >= 2 and work.gathers >= options.gathers:
            return f"made of {work.gathers} places of a buffer, at {ratio:.3g} uses of every element"
        own = self._bytes(name)
        inputs = sum(min(self._bytes(read), own * 4) for read in work.reads)
        if users > 1 and name in self.written and not on_cpu and inputs > own:
            return f"it is in memory for a call, and {users} users would read {inputs} bytes each instead of {own}"
        if users > 1 and users * inputs > inputs + (1 + users) * own:
            return f"{users} users would read {inputs} bytes each instead of {own}"
        return None

    def _bytes(self, name: str) -> int:
        return estimate(bytes_of(self.schedule.buffers[name].type))

    def _record(self, virtual: dict[str, Definition]) -> None:
        for name in virtual:
            if name not in self.forced and self.definitions[name].copy_of is None and self.users.get(name, 0):
                saved = (1 + self.users[name]) * self._bytes(name)
                self.decisions.append(Decision("inlined", (name,), f"{self.users[name]} users recompute it", saved))


def _own_work(definition: Definition) -> Work:
    """What stands in the definition itself."""
    pieces = [piece.statements for piece in definition.pieces]
    cost = sum(map(cost_of, pieces)) + (3 * len(pieces) if len(pieces) > 1 else 0)
    return Work(cost, instructions=sum(cost_of(one, on_gpu=True) for one in pieces), gathers=_gathers(definition))


def _work(definition: Definition, own: Work, virtual: dict[str, Definition], work: dict[str, Work]) -> Work:
    cost, depth, reads, instructions, gathers = own.cost, 0, set[str](), own.instructions, own.gathers
    for piece in definition.pieces:
        for statement in piece.statements:
            if not isinstance(statement, Load):
                continue
            if statement.buffer in virtual:
                inner = work[statement.buffer]
                cost, depth = cost + inner.cost, max(depth, inner.depth)
                instructions += inner.instructions
                gathers = max(gathers, inner.gathers)
                reads |= inner.reads
            else:
                reads.add(statement.buffer)
    return Work(cost, depth + 1, frozenset(reads), instructions, gathers)


def _gathers(definition: Definition) -> int:
    """Of how many places of one buffer an element is made at most."""
    every = ({(s.buffer, s.index) for s in piece.statements if isinstance(s, Load)} for piece in definition.pieces)
    return max((count for places in every for count in Counter(name for name, _ in places).values()), default=0)


def _read_apart(nest: Kernel) -> set[str]:
    """The buffers that a pointwise nest reads in larger steps than it writes along its innermost axis."""
    write = next((s for s in nest.sections[-1].statements if isinstance(s, Store)), None)
    if write is None or len(nest.sections) > 1 or nest.sections[0].axes or not write.index:
        return set()
    inner = axes_of(write.index[-1])
    return {
        read.buffer
        for read in nest.sections[0].statements
        if isinstance(read, Load) and any(_steps(index, inner) for index in read.index)
    }


def _steps(index: Index, axes: set[str]) -> bool:
    return any(name in axes and step not in (1, -1) for name, step in steps(index).items())


MOST = 4
"""Estimated recomputations of a value that several users read at every point of one nest."""

ENDLESS = 10**6
"""Instructions: longer chains of definitions are not followed."""


def places_of(nest: Kernel) -> dict[str, int]:
    """In how many places a point reads each buffer."""
    places = dict.fromkeys((s.buffer, s.index) for s in select(nest.sections, Load))
    return dict(Counter(name for name, _ in places))


def runs_of(nest: Kernel) -> int:
    """How often the innermost statements run."""
    inner = max([estimate(points_of(section.axes)) for section in nest.sections], default=1)
    return estimate(points_of(nest.axes)) * inner


Virtual = Mapping[str, Definition]


class UnreadChecks:
    """Asked of the definitions of a schedule in order: whether some of their elements may raise, and are not read. A
    definition in the place of its reads is computed where these are: `x[index][:2]` is an error of the whole index.

    dims: for a buffer the dimensions along which it changes what may raise.
    """

    def __init__(self, schedule: Schedule, definitions: Mapping[str, Definition]) -> None:
        self.dims: dict[str, frozenset[int]] = {}
        self.buffers = schedule.buffers
        self._readers: dict[str, list[tuple[Kernel, Load]]] = {}
        on_cpu = [one for one in definitions.values() if self.buffers[one.buffer].type.device == "cpu"]
        self._is_needed = any(may_raise(s) for one in on_cpu for piece in one.pieces for s in piece.statements)
        for nest in schedule.kernels if self._is_needed else ():
            for load in select(nest.sections, Load):
                self._readers.setdefault(load.buffer, []).append((nest, load))

    def of(self, definition: Definition, virtual: Virtual) -> bool:
        """Whether elements of a buffer have checks that no reader makes, once `virtual` stand where they are read."""
        name = definition.buffer
        if not self._is_needed or self.buffers[name].type.device != "cpu":
            return False
        dims = frozenset(self._checked(definition, virtual))
        if not dims and not self._raises(definition, virtual):
            return False
        self.dims[name] = dims
        shape = self.buffers[name].type.shape
        return not any(_reads_all(nest, read, dims, shape) for nest, read in self._readers.get(name, ()))

    def _raises(self, definition: Definition, virtual: Virtual) -> bool:
        return any(self._is_checked(s, virtual) for piece in definition.pieces for s in piece.statements)

    def _is_checked(self, statement: Statement, virtual: Virtual) -> bool:
        if isinstance(statement, Load):
            return statement.buffer in virtual and statement.buffer in self.dims
        return may_raise(statement)

    def _checked(self, definition: Definition, virtual: Virtual) -> Iterator[int]:
        """The dimensions of a definition along which it changes what may raise."""
        for piece in definition.pieces:
            axes = axes_of_values(piece.statements)
            found: set[str] = set()
            for statement in piece.statements:
                if not self._is_checked(statement, virtual):
                    continue
                if isinstance(statement, Load):
                    for dim in self.dims[statement.buffer]:
                        found |= _axes_of_index(statement.index[dim], axes)
                    found |= axes.get(statement.mask.name, set()) if statement.mask is not None else set()
                else:
                    found |= set().union(*(axes.get(name, set()) for name in used_values(statement)))
            for dim, axis in enumerate(piece.places):
                if (axis is not None and axis.name in found) or (found and len(definition.pieces) > 1):
                    yield dim


def _axes_of_index(index: Index, values: Mapping[str, set[str]]) -> set[str]:
    return set(axes_of(index)).union(*(values.get(name, set()) for name in values_of(index)))


def _reads_all(nest: Kernel, read: Load, dims: frozenset[int], shape: Sequence[Dim]) -> bool:
    """Whether a nest reads the buffer at every place along `dims`: as many points as places, at no place of data."""
    coordinates = [read.index[dim] for dim in sorted(dims)]
    if any(map(has_values, coordinates)):
        return False
    sizes = axis_sizes(nest)
    axes = {name for index in coordinates for name in axes_of(index)}
    masked = set() if read.mask is None else axes_of_values(tuple(statements_of(nest))).get(read.mask.name, set())
    if not axes.isdisjoint(masked):
        return False
    return numel(tuple([sizes[name] for name in axes])) == numel(tuple([shape[dim] for dim in sorted(dims)]))
