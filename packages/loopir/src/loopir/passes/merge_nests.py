"""Merging of two nests into one kernel, or the reason why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from loopir import index as ix
from loopir.nest import Block, Names, Nest, Read, Statement, Write, axis_sizes, result_names, statements_of, used_values
from loopir.passes.match_axes import Correspondence, Side
from loopir.rewrite import replace_values, substitute_axes
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.loop import Axis, Index, Operand, Reduce
from stagewire.types import ITEM_SIZE, TensorType, numel


class Limits(NamedTuple):
    """How large a kernel may grow, and how few parallel points it may be left with."""

    statements: int = 256
    buffers: int = 32
    outer_points: int = 16
    inner_points: int = 4096


LIMITS = Limits()


class Merged(NamedTuple):
    """A merged nest and the bytes that need not be read again."""

    nest: Nest
    bytes_saved: Dim


def merge(first: Nest, second: Nest, types: Mapping[str, TensorType], names: Names, limits: Limits) -> Merged | str:
    """`first` and then `second` as one kernel, or why that is not possible."""
    refusal = _too_large(first, second, limits) or _mixes_atomics(first, second, types)
    if refusal:
        return refusal
    writes = {s.buffer: s for s in statements_of(first) if isinstance(s, Write)}
    link = _vertical(first, second, writes, names)
    if isinstance(link, str):
        return link
    match, saved = _horizontal(first, second, writes, link, types)
    if not match.bound and not (is_scalar(first) and is_scalar(second)) and (first.axes or second.axes or not saved):
        return "nothing shared at the same points"
    left = substitute_axes(first, match.left.mapping(), _replacement(match.left))
    right = substitute_axes(second, match.right.mapping(), _replacement(match.right))
    right = _rename_axes(right, match.bound, match.left.sizes)
    outer = _outer_axes(left, right, limits)
    if isinstance(outer, str):
        return outer
    blocks = _Blocks(_with_outer(left, outer))
    for block in _with_outer(right, outer):
        blocks.add(block)
    merged = Nest(first.name, outer, blocks.result(), (*first.origins, *second.origins), first.line or second.line)
    return Merged(merged, saved)


def is_scalar(nest: Nest) -> bool:
    """Whether the nest runs one point: no loops at all."""
    return not nest.axes and not any(block.axes for block in nest.blocks)


def _too_large(first: Nest, second: Nest, limits: Limits) -> str | None:
    count = sum(len(block.statements) for nest in (first, second) for block in nest.blocks)
    if count > limits.statements:
        return f"{count} statements are more than {limits.statements}"
    buffers = {s.buffer for nest in (first, second) for s in statements_of(nest) if isinstance(s, Read | Write)}
    return f"{len(buffers)} buffers are more than {limits.buffers}" if len(buffers) > limits.buffers else None


def _mixes_atomics(first: Nest, second: Nest, types: Mapping[str, TensorType]) -> str | None:
    """On a CPU atomics are not free: a loop that accumulates at random places is shared out by columns, alone."""
    accumulated = [_accumulated(nest) for nest in (first, second)]
    on_cpu = any(types[name].device.startswith("cpu") for names in accumulated for name in names)
    if on_cpu and bool(accumulated[0]) != bool(accumulated[1]):
        return "accumulates at indirect places, and would keep the other from running in parallel"
    return None


def _accumulated(nest: Nest) -> list[str]:
    return [s.buffer for block in nest.blocks for s in block.statements if isinstance(s, Write) and s.mode != "set"]


def _vertical(first: Nest, second: Nest, writes: Mapping[str, Write], names: Names) -> Correspondence | str:
    """Every element that `second` reads from `first` must be read at the point that wrote it."""
    match = Correspondence(Side(dict(axis_sizes(first))), Side(dict(axis_sizes(second))), names)
    counts: dict[str, int] = {}
    for statement in statements_of(first):
        if isinstance(statement, Write):
            counts[statement.buffer] = counts.get(statement.buffer, 0) + 1
    for statement in statements_of(second):
        if isinstance(statement, Write) and statement.buffer in writes:
            other = writes[statement.buffer]
            if {statement.mode, other.mode} != {"set"} or _is_indirect(statement.coordinates):
                return f"both write {statement.buffer}, at points that may be the same"
        if not isinstance(statement, Read) or statement.buffer not in writes:
            continue
        write = writes[statement.buffer]
        if counts[statement.buffer] > 1 or write.mode != "set" or write.mask is not None:
            return f"{statement.buffer} is complete only after the whole kernel"
        if not match.unify(write.coordinates, statement.coordinates):
            return f"{statement.buffer} is read at other points than it is written"
    return match


def _is_indirect(coordinates: tuple[Index, ...]) -> bool:
    return any(ix.has_values(c) for c in coordinates)


def _horizontal(
    first: Nest, second: Nest, writes: Mapping[str, Write], match: Correspondence, types: Mapping[str, TensorType]
) -> tuple[Correspondence, Dim]:
    """Bind what is still free by reads that both make; count the bytes that are then read once."""
    saved: Dim = 0
    places: dict[str, list[tuple[Index, ...]]] = {}
    for statement in statements_of(first):
        if isinstance(statement, Read):
            places.setdefault(statement.buffer, []).append(statement.coordinates)
    seen: set[str] = set()
    shared = [s for s in statements_of(second) if isinstance(s, Read) and (s.buffer in places or s.buffer in writes)]
    for read in sorted(shared, key=lambda s: -_size(types[s.buffer])):
        size = numel(types[read.buffer].shape) * ITEM_SIZE[types[read.buffer].dtype]
        if read.buffer in writes:
            saved = saved + size if read.buffer not in seen else saved
            seen.add(read.buffer)
            continue
        if _is_indirect(read.coordinates):
            continue
        for place in places[read.buffer]:
            trial = match.copy()
            if trial.unify(place, read.coordinates):
                match = trial
                saved = saved + size if read.buffer not in seen else saved
                seen.add(read.buffer)
                break
    return match, saved


def _size(type: TensorType) -> int:
    size = numel(type.shape)
    return size if isinstance(size, int) else 1 << 20


def _replacement(side: Side) -> dict[str, tuple[Axis, ...]]:
    return {name: side.parts(parts) for name, parts in side.split.items()}


def _rename_axes(nest: Nest, bound: Mapping[str, str], sizes: Mapping[str, Dim]) -> Nest:
    mapping = {old: ix.axis(new) for old, new in bound.items()}
    return substitute_axes(nest, mapping, {old: (Axis(new, sizes[new]),) for old, new in bound.items()})


def _outer_axes(left: Nest, right: Nest, limits: Limits) -> tuple[Axis, ...] | str:
    """The parallel axes of the merged kernel: those of the reductions, if there are any."""
    left_fixed, right_fixed = _is_fixed(left), _is_fixed(right)
    a, b = {axis.name for axis in left.axes}, {axis.name for axis in right.axes}
    if a == b:
        return left.axes
    if left_fixed and right_fixed:
        return "reductions over different outer axes"
    if left_fixed and a <= b:
        return left.axes if _enough(left.axes, right, limits) else "too few rows to spread over the machine"
    if right_fixed and b <= a:
        return right.axes
    return "the iteration spaces differ"


def _is_fixed(nest: Nest) -> bool:
    return any(block.axes for block in nest.blocks)


def _enough(outer: tuple[Axis, ...], right: Nest, limits: Limits) -> bool:
    points = numel(tuple(axis.size for axis in outer))
    whole = numel(tuple(axis.size for axis in right.axes))
    if not isinstance(points, int) or not isinstance(whole, int):
        return bool(outer)
    return points >= limits.outer_points or whole // max(points, 1) < limits.inner_points


def _with_outer(nest: Nest, outer: tuple[Axis, ...]) -> tuple[Block, ...]:
    """The blocks under fewer outer axes: what is left of a pointwise nest becomes inner."""
    kept = {axis.name for axis in outer}
    rest = tuple(axis for axis in nest.axes if axis.name not in kept)
    if not rest:
        return nest.blocks
    return tuple(Block((*rest, *block.axes), block.statements) for block in nest.blocks)


class _Blocks:
    """The blocks of the merged nest; each added block joins the earliest one that it can."""

    def __init__(self, blocks: tuple[Block, ...]) -> None:
        self.axes = [block.axes for block in blocks]
        self.statements = [list(block.statements) for block in blocks]
        self.home: dict[str, int] = {}
        self.reduced: set[str] = set()
        self.writes: dict[str, tuple[int, Write]] = {}
        self.replaced: dict[str, Operand] = {}
        for number, statements in enumerate(self.statements):
            for statement in statements:
                self._note(statement, number)

    def result(self) -> tuple[Block, ...]:
        """The merged blocks."""
        return tuple(Block(axes, tuple(s)) for axes, s in zip(self.axes, self.statements, strict=True))

    def add(self, block: Block) -> None:
        """Place one more block."""
        statements = [replace_values(s, self.replaced) for s in block.statements]
        number = self._position(block.axes, statements)
        if number == len(self.axes):
            self.axes.append(block.axes)
            self.statements.append([])
        for statement in statements:
            statement = replace_values(statement, self.replaced)
            if isinstance(statement, Read) and self._forward(statement, number):
                continue
            self.statements[number].append(statement)
            self._note(statement, number)

    def _note(self, statement: Statement, number: int) -> None:
        for name in result_names(statement):
            self.home[name] = number
        if isinstance(statement, Reduce):
            self.reduced.update(statement.results)
        if isinstance(statement, Write):
            self.writes[statement.buffer] = (number, statement)

    def _position(self, axes: tuple[Axis, ...], statements: list[Statement]) -> int:
        earliest = 0
        local = {name for s in statements for name in result_names(s)}
        for statement in statements:
            for name in used_values(statement):
                if name not in local and name in self.home:
                    home = self.home[name]
                    earliest = max(earliest, home + (1 if name in self.reduced else 0))
            if isinstance(statement, Read) and statement.buffer in self.writes:
                earliest = max(earliest, self.writes[statement.buffer][0])
        ordered = any(isinstance(s, Reduce) and s.reduction in ("argmax", "argmin") for s in statements)
        for number in range(earliest, len(self.axes)):
            same = self.axes[number] == axes or (not ordered and axes and set(self.axes[number]) == set(axes))
            if same and self._reads_stay_valid(number, statements):
                return number
        return len(self.axes)

    def _reads_stay_valid(self, number: int, statements: list[Statement]) -> bool:
        """In the block that writes a buffer only the element just written may be read: its value is at hand."""
        for statement in statements:
            if isinstance(statement, Read) and statement.buffer in self.writes:
                home, write = self.writes[statement.buffer]
                if home == number and not _is_same(write, statement):
                    return False
        return True

    def _forward(self, read: Read, number: int) -> bool:
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


def _is_same(write: Write, read: Read) -> bool:
    """Whether the read gives the value that was written at the same point."""
    return isinstance(write.value, Ref) and read.mask is None and write.coordinates == read.coordinates
