"""Merging of two nests into one kernel, or the reason why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from loopir.schedule import Names, axis_sizes, keeps_order, substitute_axes
from stagewire import index as ix
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Index, Kernel, Load, Operand, Reduce, Scan, Section, Statement, Store, Term
from stagewire.sizes import divides, estimate
from stagewire.statements import points_of, replace_values, results, select, used_values
from stagewire.types import TensorType, bytes_of, numel

Digit = tuple[str, Dim]


class Side:
    """The axes of one nest, split as the correspondence needs."""

    def __init__(self, sizes: dict[str, Dim]) -> None:
        self.sizes = sizes
        self.split: dict[str, tuple[Axis, Axis]] = {}

    def copy(self) -> Side:
        """An independent copy."""
        other = Side(dict(self.sizes))
        other.split = dict(self.split)
        return other

    def resolve(self, index: Index) -> Index:
        """The index over the axes as they are split now."""
        if not self.split:
            return index
        while index.terms:
            found = [name for name in ix.axes_of(index) if name in self.split]
            if not found:
                break
            index = ix.substitute(index, {name: self.index_of(name) for name in found}, self.sizes)
        return index

    def index_of(self, name: str) -> Index:
        """A split axis as an index over its two parts."""
        high, low = self.split[name]
        return ix.add(ix.scale(ix.axis(high.name), low.size), ix.axis(low.name))

    def cut(self, name: str, low_size: Dim, names: Names) -> tuple[Digit, Digit]:
        """Split an axis into (high, low) parts; `low_size` divides its size."""
        size = self.sizes[name]
        high, low = Axis(names("a"), size // low_size), Axis(names("a"), low_size)
        self.split[name] = (high, low)
        self.sizes[high.name] = high.size
        self.sizes[low.name] = low.size
        return (high.name, size // low_size), (low.name, low_size)

    def parts(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """The axes as they are split now, in row-major order."""
        if not self.split:
            return axes
        result: list[Axis] = []
        for axis in axes:
            result.extend(self.parts(self.split[axis.name]) if axis.name in self.split else (axis,))
        return tuple(result)

    def mapping(self) -> dict[str, Index]:
        """Every split axis as an index over final axes."""
        return {name: self.resolve(ix.axis(name)) for name in self.split}


class Correspondence:
    """`bound` maps axes of the right nest to axes of the left one; both sides may get split on the way."""

    def __init__(self, left: Side, right: Side, names: Names) -> None:
        self.left = left
        self.right = right
        self.names = names
        self.bound: dict[str, str] = {}
        self.used: set[str] = set()

    def copy(self) -> Correspondence:
        """An independent copy, for a trial."""
        other = Correspondence(self.left.copy(), self.right.copy(), self.names)
        other.bound = dict(self.bound)
        other.used = set(self.used)
        return other

    def unify(self, left: tuple[Index, ...], right: tuple[Index, ...]) -> bool:
        """Bind axes so that the two places are the same element at corresponding points; False if that fails
        (the correspondence is then spoilt: try on a copy)."""
        return all(self._coordinate(a, b) for a, b in zip(left, right, strict=True))

    def _coordinate(self, left: Index, right: Index) -> bool:
        a, b = self.left.resolve(left), self.right.resolve(right)
        if a.constant != b.constant:
            return False
        if not a.terms or not b.terms:
            return not a.terms and not b.terms
        if len(a.terms) == len(b.terms) == 1 and self._one_axis(a.terms[0], b.terms[0]):
            return self.bind(a.terms[0].atom.name, b.terms[0].atom.name)  # type: ignore[union-attr]
        digits_a, digits_b = _digits(a, self.left.sizes), _digits(b, self.right.sizes)
        if digits_a is None or digits_b is None or digits_a[0] != digits_b[0]:
            return (
                all(x in self.bound for x in ix.axes_of(b))
                and ix.substitute(b, {x: ix.axis(self.bound[x]) for x in ix.axes_of(b)}, self.left.sizes) == a
            )
        return self._walk(digits_a[1], digits_b[1])

    def _one_axis(self, left: Term, right: Term) -> bool:
        """Whether both are an axis of one size, times one number."""
        a, b = left.atom, right.atom
        if a.__class__ is not AxisAtom or b.__class__ is not AxisAtom or left.coefficient != right.coefficient:
            return False
        return self.left.sizes[a.name] == self.right.sizes[b.name]  # type: ignore[union-attr]

    def _walk(self, a: list[Digit], b: list[Digit]) -> bool:
        """Bind digits from the fastest to the slowest, splitting the larger of two unequal ones."""
        while a and b:
            (left, m), (right, n) = a.pop(), b.pop()
            if m == n:
                if not self.bind(left, right):
                    return False
            elif m == 0 or n == 0 or left in self.used or right in self.bound:
                return False
            elif divides(m, n):
                high, low = self.right.cut(right, m, self.names)
                b.append(high)
                self.bind(left, low[0])
            elif divides(n, m):
                high, low = self.left.cut(left, n, self.names)
                a.append(high)
                self.bind(low[0], right)
            else:
                return False
        return not a and not b

    def bind(self, left: str, right: str) -> bool:
        """Let an axis of the right nest be one of the left; False where either is bound otherwise."""
        if right in self.bound:
            return self.bound[right] == left
        if left in self.used:
            return False
        self.bound[right] = left
        self.used.add(left)
        return True


def _digits(index: Index, sizes: dict[str, Dim]) -> tuple[Dim, list[Digit]] | None:
    """(unit, digits slowest first) of an index that counts in mixed radix: unit*(... + size2*(axis1) + axis2)."""
    steps = ix.affine(index)
    if steps is None:
        return None
    if len(steps) == 1:
        ((name, unit),) = steps.items()
        return unit, [(name, sizes[name])]
    if not all(estimate(step) > 0 for step in steps.values()):
        return None
    ways = sorted(steps.items(), key=lambda way: estimate(way[1]))
    unit = step = ways[0][1]
    digits: list[Digit] = []
    for name, moved in ways:
        if moved != step:
            return None
        digits.append((name, sizes[name]))
        step = step * sizes[name]
    return unit, digits[::-1]


class Limits(NamedTuple):
    """How large a kernel may grow, and how few parallel points it may be left with where its loops have so many.

    columns, column_points: the same where memory runs along the parallel points, of which a program then takes many.
    """

    statements: int = 256
    buffers: int = 32
    outer_points: int = 16
    inner_points: int = 4096
    columns: int = 16
    column_points: int = 4096


LIMITS = Limits()
GPU_LIMITS = Limits(outer_points=512, columns=16384, column_points=256)


class Merged(NamedTuple):
    """A merged nest and the bytes that need not be read again."""

    nest: Kernel
    bytes_saved: Dim


class Part(NamedTuple):
    """A nest and what merging asks about it again and again."""

    nest: Kernel
    reads: tuple[Load, ...]
    writes: tuple[Store, ...]
    statements: int
    buffers: frozenset[str]
    is_looped: bool


def part_of(nest: Kernel) -> Part:
    """The facts of a nest."""
    reads, writes = (tuple(select(nest.sections, kind)) for kind in (Load, Store))
    count = sum(len(section.statements) for section in nest.sections)
    buffers = frozenset([s.buffer for s in (*reads, *writes)])
    return Part(nest, reads, writes, count, buffers, any(section.axes for section in nest.sections))


def merge(first: Part, second: Part, types: Mapping[str, TensorType], names: Names, limits: Limits) -> Merged | str:
    """`first` and then `second` as one kernel, or why that is not possible."""
    refusal = _too_large(first, second, limits) or _apart(first, second, types) or _mixes_atomics(first, second, types)
    if refusal:
        return refusal
    a, b = first.nest, second.nest
    writes = {write.buffer: write for write in first.writes}
    link = _vertical(first, second, writes, names)
    if isinstance(link, str):
        return link
    match, saved = _horizontal(first, second, writes, link, types)
    if not match.bound and (_are_siblings(first, second, types) or _combine_alike(first, second, types)):
        for x, y in zip(axis_sizes(a), axis_sizes(b), strict=True):
            match.bind(x, y)
    if not match.bound and not (is_scalar(a) and is_scalar(b)) and (a.axes or b.axes or not saved):
        return "nothing shared at the same points"
    outer = _outer_axes(first, second, match)
    if isinstance(outer, str):
        return outer
    left = substitute_axes(a, match.left.mapping(), _replacement(match.left))
    right = substitute_axes(b, match.right.mapping(), _replacement(match.right))
    right = _rename_axes(right, match.bound, match.left.sizes)
    if any(len(outer) < len(nest.axes) and _hands_on(nest) for nest in (left, right)):
        return "a point hands a value from one section to another, which loops would not"
    sections = Sections(_with_outer(left, outer))
    for section in _with_outer(right, outer):
        sections.add(section)
    merged = sections.result()
    if len(outer) < len(right.axes) and not _enough(outer, right, types, limits) and not _is_scan(merged):
        return "too few rows to spread over the machine"
    return Merged(Kernel(a.name, outer, merged, (*a.origins, *b.origins), a.line or b.line), saved)


def _are_siblings(first: Part, second: Part, types: Mapping[str, TensorType]) -> bool:
    """Whether two copies or chains have one loop and one layout: parts of one tensor that are torn off it."""
    if first.is_looped or second.is_looped or [x.size for x in first.nest.axes] != [x.size for x in second.nest.axes]:
        return False
    writes = (*first.writes, *second.writes)
    layouts = {(types[write.buffer].shape, types[write.buffer].stride) for write in writes}
    plain = all(write.mode == "set" and not _is_indirect(write.index) for write in writes)
    return len(layouts) == 1 and plain and first.buffers.isdisjoint(write.buffer for write in second.writes)


def _combine_alike(first: Part, second: Part, types: Mapping[str, TensorType]) -> bool:
    """Whether two nests on a GPU reduce buffers of one layout in the same way: partial results of one kernel."""
    a, b = axis_sizes(first.nest), axis_sizes(second.nest)
    if not (first.is_looped and second.is_looped) or list(a.values()) != list(b.values()):
        return False
    if [len(one.axes) for one in first.nest.sections] != [len(one.axes) for one in second.nest.sections]:
        return False
    names = dict(zip(b, a, strict=True))
    reads = [(types[s.buffer], s.index) for s in first.reads]
    reads += [(types[s.buffer], tuple([ix.rename(c, names) for c in s.index])) for s in second.reads]
    writes = {write.buffer for write in (*first.writes, *second.writes)}
    on_gpu = all(not types[name].device.startswith("cpu") for name in writes)
    return on_gpu and all(read == reads[0] for read in reads) and writes.isdisjoint(first.buffers & second.buffers)


def is_scalar(nest: Kernel) -> bool:
    """Whether the nest runs one point: no loops at all."""
    return not nest.axes and not any(section.axes for section in nest.sections)


def _too_large(first: Part, second: Part, limits: Limits) -> str | None:
    count = first.statements + second.statements
    if count > limits.statements:
        return f"{count} statements are more than {limits.statements}"
    buffers = len(first.buffers | second.buffers)
    return f"{buffers} buffers are more than {limits.buffers}" if buffers > limits.buffers else None


def _apart(first: Part, second: Part, types: Mapping[str, TensorType]) -> str | None:
    """A kernel runs on one device. (It may read numbers on the CPU.)"""
    devices = {types[write.buffer].device for write in (*first.writes, *second.writes)}
    return f"results on {' and '.join(sorted(devices))}" if len(devices) > 1 else None


def _mixes_atomics(first: Part, second: Part, types: Mapping[str, TensorType]) -> str | None:
    """On a CPU atomics are not free: a loop that accumulates at random places is shared out by columns, alone."""
    left, right = _accumulated(first), _accumulated(second)
    if bool(left) != bool(right) and any(types[name].device.startswith("cpu") for name in (*left, *right)):
        return "accumulates at indirect places, and would keep the other from running in parallel"
    return None


def _accumulated(part: Part) -> list[str]:
    return [write.buffer for write in part.writes if write.mode != "set"]


def _vertical(first: Part, second: Part, writes: Mapping[str, Store], names: Names) -> Correspondence | str:
    """Every element that `second` reads from `first` must be read at the point that wrote it."""
    match = Correspondence(Side(axis_sizes(first.nest)), Side(axis_sizes(second.nest)), names)
    for write in second.writes:
        other = writes.get(write.buffer)
        if other is not None and ({write.mode, other.mode} != {"set"} or _is_indirect(write.index)):
            return f"both write {write.buffer}, at points that may be the same"
    for read in second.reads:
        found = writes.get(read.buffer)
        if found is None:
            continue
        once = sum(write.buffer == read.buffer for write in first.writes) == 1
        if not once or found.mode != "set" or found.mask is not None:
            return f"{read.buffer} is complete only after the whole kernel"
        if not match.unify(found.index, read.index):
            return f"{read.buffer} is read at other points than it is written"
    return match


def _is_indirect(coordinates: tuple[Index, ...]) -> bool:
    return any(ix.has_values(c) for c in coordinates)


def _horizontal(
    first: Part, second: Part, writes: Mapping[str, Store], match: Correspondence, types: Mapping[str, TensorType]
) -> tuple[Correspondence, Dim]:
    """Bind what is still free by reads that both make; count the bytes that are then read once."""
    saved: Dim = 0
    places: dict[str, list[tuple[Index, ...]]] = {}
    for read in first.reads:
        places.setdefault(read.buffer, []).append(read.index)
    seen: set[str] = set()
    shared = [read for read in second.reads if read.buffer in places or read.buffer in writes]
    if len(shared) > 1:
        shared.sort(key=lambda read: -estimate(numel(types[read.buffer].shape)))
    for read in shared:
        if read.buffer not in writes:
            found = None if _is_indirect(read.index) else _bind(match, places[read.buffer], read)
            if found is None:
                continue
            match = found
        if read.buffer not in seen:
            seen.add(read.buffer)
            saved = saved + bytes_of(types[read.buffer])
    return match, saved


def _bind(match: Correspondence, places: list[tuple[Index, ...]], read: Load) -> Correspondence | None:
    """The correspondence under which the read is at one of the places, if there is one."""
    for place in places:
        trial = match.copy()
        if trial.unify(place, read.index):
            return trial
    return None


def _replacement(side: Side) -> dict[str, tuple[Axis, ...]]:
    return {name: side.parts(parts) for name, parts in side.split.items()}


def _rename_axes(nest: Kernel, bound: Mapping[str, str], sizes: Mapping[str, Dim]) -> Kernel:
    mapping = {old: ix.axis(new) for old, new in bound.items()}
    return substitute_axes(nest, mapping, {old: (Axis(new, sizes[new]),) for old, new in bound.items()})


def _outer_axes(first: Part, second: Part, match: Correspondence) -> tuple[Axis, ...] | str:
    """The parallel axes of the merged kernel: those of the reductions, if there are any."""
    left, right = match.left.parts(first.nest.axes), match.right.parts(second.nest.axes)
    a, b = {axis.name for axis in left}, {match.bound.get(axis.name, axis.name) for axis in right}
    if a == b:
        return left
    if first.is_looped and second.is_looped:
        return "reductions over different outer axes"
    if first.is_looped and a <= b:
        return left
    if second.is_looped and b <= a:
        sizes = match.left.sizes
        return tuple([Axis(match.bound[x.name], sizes[match.bound[x.name]]) for x in right])
    return "the iteration spaces differ"


def _enough(outer: tuple[Axis, ...], right: Kernel, types: Mapping[str, TensorType], limits: Limits) -> bool:
    """Whether a pointwise nest has enough to do side by side where all but the outer axes are loops."""
    points = estimate(points_of(outer))
    whole = estimate(points_of(right.axes))
    least, longest = limits.outer_points, limits.inner_points
    if _runs_along({axis.name for axis in outer}, right, types):
        least, longest = limits.columns, limits.column_points
    return points >= least or whole // max(points, 1) < longest


def _runs_along(outer: set[str], nest: Kernel, types: Mapping[str, TensorType]) -> bool:
    """Whether memory runs along the outer axes, for most of what a pointwise nest reads and writes at each point."""
    rows = columns = 0
    for statement in select(nest.sections, Load | Store):
        offset = ix.linear(statement.index, types[statement.buffer].stride)
        steps = {getattr(term.atom, "name", ""): term.coefficient for term in offset.terms}
        if not outer.issuperset(steps):
            columns += any(steps.get(name) == 1 for name in outer)
            rows += any(step == 1 for name, step in steps.items() if name not in outer)
    return columns > rows


def _is_scan(sections: tuple[Section, ...]) -> bool:
    """Whether there is one loop, which scans rows: several programs share each, however few there are."""
    loops = [section for section in sections if section.axes]
    kinds = {type(statement) for section in loops for statement in section.statements}
    return len(loops) == 1 and Scan in kinds and Reduce not in kinds


def _hands_on(nest: Kernel) -> bool:
    """Whether a section uses a value of one before it."""
    seen: set[str] = set()
    for section in nest.sections:
        if any(name in seen for statement in section.statements for name in used_values(statement)):
            return True
        seen.update(name for statement in section.statements for name in results(statement))
    return False


def _with_outer(nest: Kernel, outer: tuple[Axis, ...]) -> tuple[Section, ...]:
    """The sections under fewer outer axes: what is left of a pointwise nest becomes inner."""
    kept = {axis.name for axis in outer}
    rest = tuple(axis for axis in nest.axes if axis.name not in kept)
    if not rest:
        return nest.sections
    return tuple(Section((*rest, *section.axes), section.statements) for section in nest.sections)


class Sections:
    """The sections of the merged nest; each added section joins the earliest one that it can."""

    def __init__(self, sections: tuple[Section, ...]) -> None:
        self.axes = [section.axes for section in sections]
        self.statements = [list(section.statements) for section in sections]
        self.home: dict[str, int] = {}
        self.reduced: set[str] = set()
        self.writes: dict[str, tuple[int, Store]] = {}
        self.replaced: dict[str, Operand] = {}
        for number, statements in enumerate(self.statements):
            for statement in statements:
                self._note(statement, number)

    def result(self) -> tuple[Section, ...]:
        """The merged sections."""
        return tuple(Section(axes, tuple(s)) for axes, s in zip(self.axes, self.statements, strict=True))

    def add(self, section: Section) -> None:
        """Place one more section."""
        statements = [replace_values(s, self.replaced) for s in section.statements]
        number = self._position(section.axes, statements)
        if number == len(self.axes):
            self.axes.append(section.axes)
            self.statements.append([])
        for statement in statements:
            statement = replace_values(statement, self.replaced)
            if isinstance(statement, Load) and self._forward(statement, number):
                continue
            self.statements[number].append(statement)
            self._note(statement, number)

    def _note(self, statement: Statement, number: int) -> None:
        for name in results(statement):
            self.home[name] = number
        if isinstance(statement, Reduce):
            self.reduced.update(statement.results)
        if isinstance(statement, Store):
            self.writes[statement.buffer] = (number, statement)

    def _position(self, axes: tuple[Axis, ...], statements: list[Statement]) -> int:
        earliest = 0
        local = {name for s in statements for name in results(s)}
        for statement in statements:
            for name in used_values(statement):
                if name not in local and name in self.home:
                    home = self.home[name]
                    earliest = max(earliest, home + (1 if name in self.reduced else 0))
            if isinstance(statement, Load) and statement.buffer in self.writes:
                earliest = max(earliest, self.writes[statement.buffer][0])
        ordered = keeps_order(statements)
        for number in range(earliest, len(self.axes)):
            same = self.axes[number] == axes or (not ordered and axes and set(self.axes[number]) == set(axes))
            if same and self._reads_stay_valid(number, statements):
                return number
        return len(self.axes)

    def _reads_stay_valid(self, number: int, statements: list[Statement]) -> bool:
        """In the section that writes a buffer only the element just written may be read: its value is at hand."""
        for statement in statements:
            if isinstance(statement, Load) and statement.buffer in self.writes:
                home, write = self.writes[statement.buffer]
                if home == number and not _is_same(write, statement):
                    return False
        return True

    def _forward(self, read: Load, number: int) -> bool:
        """Use the value that was written instead of reading it back."""
        found = self.writes.get(read.buffer)
        if found is None:
            return False
        home, write = found
        if not _is_same(write, read):
            return False
        assert isinstance(write.value, Ref)
        if home != number and self.axes[home] and not self._is_outer(write.value.name):
            return False
        self.replaced[read.result] = write.value
        return True

    def _is_outer(self, name: str) -> bool:
        return name in self.reduced or not self.axes[self.home[name]]


def _is_same(write: Store, read: Load) -> bool:
    """Whether the read gives the value that was written at the same point."""
    return isinstance(write.value, Ref) and read.mask is None and write.index == read.index
