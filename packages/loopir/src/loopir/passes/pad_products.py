"""Passes: rows of the matrices that a product reads and writes begin at multiples of 16 bytes.

The matrix units of a GPU are fed in pieces of 16 bytes: a product whose rows begin elsewhere takes three to five times
as long. A vocabulary of 50,257 words in bfloat16 is such a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from loopir.builder import record
from loopir.layout import stride_order
from loopir.nest import (
    Item,
    Names,
    Nest,
    Read,
    Schedule,
    output_names,
    public_outputs,
    reads_of,
    statements_of,
    writes_of,
)
from loopir.passes.alias_views import window_of
from stagewire.graph import Ref
from stagewire.loop import Buffer, Decision, Extern
from stagewire.types import ITEM_SIZE, TensorType, numel

PRODUCTS = {"aten.mm.default": 0, "aten.bmm.default": 0, "aten.addmm.default": 1, "aten.baddbmm.default": 1}
"""Products of matrices, and the place of the first factor among the arguments."""

PIECE = 16
HALVES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Gain:
    """When a copy into padded rows pays: seconds that aligned operands save a multiplication and addition, bytes that a
    copy moves in a second, seconds that a launch takes."""

    saved: float = 4e-15
    bandwidth: float = 3e12
    launch: float = 4e-6

    def pays(self, type: TensorType, work: int) -> bool:
        """Whether reading and writing a tensor of `type` once more is worth it for a product of so much work."""
        moved = 2 * int(numel(type.shape)) * ITEM_SIZE[type.dtype]  # type: ignore[arg-type]
        return self.launch + moved / self.bandwidth < work * self.saved


@dataclass(frozen=True)
class PadResults:
    """Before: a product may write rows that begin anywhere. After: where that pays, it writes padded rows, and a nest
    copies them to the buffer that was wanted; the inliner lets later nests read the padded rows themselves."""

    name = "pad_results"
    gain: Gain = Gain()

    def run(self, schedule: Schedule) -> Schedule:
        buffers, names = dict(schedule.buffers), Names(schedule.fresh)
        kept = output_names(schedule).union(*(reads_of(item) for item in schedule.items if isinstance(item, Extern)))
        items: list[Item] = []
        for item in schedule.items:
            work = work_of(item, buffers)
            if work is None or is_aligned(buffers[item.results[0]].type):  # type: ignore[union-attr]
                items.append(item)
                continue
            assert isinstance(item, Extern)
            (result,) = item.results
            type = buffers[result].type
            if result in kept and not self.gain.pays(type, work):  # else nests read the rows, and nothing is copied
                items.append(item)
                continue
            rows = f"{result}_rows"
            buffers[rows] = Buffer(rows, padded(type), "extern")
            buffers[result] = Buffer(result, type, "kernel")
            items.append(msgspec.structs.replace(item, results=(rows,)))
            items.append(copying(rows, result, buffers, names))
        return msgspec.structs.replace(schedule, buffers=buffers, items=tuple(items), fresh=names.count)


@dataclass(frozen=True)
class PadOperands:
    """Before: a product may read rows that begin anywhere. After: rows of buffers that nests write are padded; other
    tensors are copied once into padded rows, where that pays for all products that read them."""

    name = "pad_operands"
    gain: Gain = Gain()

    def run(self, schedule: Schedule) -> Schedule:
        state = _Operands(schedule)
        wanted: dict[str, int] = {}
        for item in schedule.items:
            work = work_of(item, state.buffers)
            for name in _factors(item) if work is not None and isinstance(item, Extern) else ():
                if not is_aligned(state.buffers[name].type):
                    wanted[name] = wanted.get(name, 0) + (work or 0)
        copies: dict[str, int] = {}
        for name, work in wanted.items():
            if not state.pad_in_place(name):
                source = state.source(name)
                copies[source] = copies.get(source, 0) + work
        for source, work in copies.items():
            if self.gain.pays(state.buffers[source].type, work):
                state.copy(source)
        for name in wanted:
            state.follow(name)
        return state.result() if wanted else schedule


class _Operands:
    """Buffers and items while operands are padded.

    windows: what the window of a nest is on, by the nest's result; fixed: buffers whose strides somebody else reads.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.buffers = dict(schedule.buffers)
        self.items = list(schedule.items)
        self.names = Names(schedule.fresh)
        self.decisions: list[Decision] = []
        self.copies: dict[str, str] = {}
        self.fixed = set(public_outputs(schedule))
        self.fixed.update(b.base for b in self.buffers.values() if b.base is not None)
        self.writers: dict[str, list[int]] = {}
        for number, item in enumerate(self.items):
            if isinstance(item, Extern) and item.target not in PRODUCTS:
                self.fixed.update(reads_of(item))
            for name in writes_of(item):
                self.writers.setdefault(name, []).append(number)

    def window(self, name: str) -> str | None:
        """The buffer on which `name` is a window."""
        nest = self._nest(name)
        if nest is None or window_of(nest, self.buffers) is None:
            return None
        return next(s.buffer for s in statements_of(nest) if isinstance(s, Read))

    def _nest(self, name: str) -> Nest | None:
        numbers = self.writers.get(name, [])
        item = self.items[numbers[0]] if len(set(numbers)) == 1 else None
        return item if isinstance(item, Nest) else None

    def pad_in_place(self, name: str) -> bool:
        """Give a buffer that nests write padded rows, and what it is a window on."""
        if self.buffers[name].role != "kernel" or name in self.fixed:
            return False
        source = self.window(name)
        if source is not None and not is_aligned(self.buffers[source].type) and not self.pad_in_place(source):
            return False
        self._pad(name)
        return True

    def source(self, name: str) -> str:
        """What has to be copied for an operand that cannot be padded where it is."""
        while (found := self.window(name)) is not None and not is_aligned(self.buffers[found].type):
            name = found
        return name

    def copy(self, source: str) -> None:
        """A padded copy, made before the first item that reads the source after it was written."""
        name = f"{source}_rows"
        self.buffers[name] = Buffer(name, padded(self.buffers[source].type), "kernel")
        self.copies[source] = name
        made = max(self.writers.get(source, [-1]), default=-1) + 1
        self._insert(made, copying(source, name, self.buffers, self.names))
        reason = "rows of multiples of 16 bytes, for products of matrices"
        self.decisions.append(Decision("materialised", (name, source), reason))

    def _insert(self, place: int, item: Item) -> None:
        self.items.insert(place, item)
        self.writers = {
            name: [number + (number >= place) for number in numbers] for name, numbers in self.writers.items()
        }
        for name in writes_of(item):
            self.writers.setdefault(name, []).append(place)

    def follow(self, name: str) -> bool:
        """Let an operand be the padded copy of what it is a window on (whether it is one), or a window on that."""
        if name in self.copies:
            for number, item in enumerate(self.items):
                if work_of(item, self.buffers) is not None and isinstance(item, Extern):
                    self.items[number] = _reading(item, name, self.copies[name])
            return True
        if self.buffers[name].role != "kernel" or name in self.fixed:
            return False
        source, nest = self.window(name), self._nest(name)
        if source is None or nest is None or not self.follow(source):
            return False
        if source in self.copies:
            self.items[self.writers[name][0]] = _renamed(nest, source, self.copies[source])
        self._pad(name)
        return True

    def _pad(self, name: str) -> None:
        buffer = self.buffers[name]
        if not is_aligned(buffer.type):
            self.buffers[name] = msgspec.structs.replace(buffer, type=padded(buffer.type))

    def result(self) -> Schedule:
        return msgspec.structs.replace(
            self.schedule,
            buffers=self.buffers,
            items=tuple(self.items),
            decisions=(*self.schedule.decisions, *self.decisions),
            fresh=self.names.count,
        )


def work_of(item: Item, buffers: dict[str, Buffer]) -> int | None:
    """Multiplications of a product in half precision on a CUDA device; None for anything else."""
    if not isinstance(item, Extern) or item.target not in PRODUCTS:
        return None
    left, right = (buffers.get(name) for name in _factors(item))
    if left is None or right is None or not left.type.device.startswith("cuda") or left.type.dtype not in HALVES:
        return None
    sizes = (*left.type.shape, right.type.shape[-1])
    if not all(isinstance(n, int) for n in (*sizes, *left.type.stride, *right.type.stride)):
        return None
    return int(numel(sizes))  # type: ignore[arg-type]


def _factors(item: Extern) -> tuple[str, str]:
    start = PRODUCTS[item.target]
    left, right = item.args[start : start + 2]
    assert isinstance(left, Ref)
    assert isinstance(right, Ref)
    return left.name, right.name


def is_aligned(type: TensorType) -> bool:
    """Whether one dimension has stride 1, and the others begin at multiples of 16 bytes."""
    steps = [step for step, size in zip(type.stride, type.shape, strict=True) if size != 1]
    return all(step == 1 or step * ITEM_SIZE[type.dtype] % PIECE == 0 for step in steps)  # type: ignore[operator]


def padded(type: TensorType) -> TensorType:
    """The same dimensions in the same order in memory, the fastest one filled up to a multiple of 16 bytes."""
    several = PIECE // ITEM_SIZE[type.dtype]
    stride: list[int] = [0] * len(type.shape)
    step = 1
    for place, d in enumerate(reversed(stride_order(type.shape, type.stride))):
        stride[d] = step
        step *= max(int(type.shape[d]), 1)  # type: ignore[arg-type]
        step = -(-step // several) * several if place == 0 else step
    return TensorType(type.dtype, type.shape, tuple(stride), device=type.device)


def copying(source: str, target: str, buffers: dict[str, Buffer], names: Names) -> Nest:
    """A nest that copies one buffer to another of the same shape."""
    types = {name: buffers[name].type for name in (source, target)}
    return record(
        target,
        types,
        types[target].shape,
        lambda ops, *place: ops.store(target, place, ops.load_buffer(source, place)),
        names=names,
        origins=(target,),
    )


def _reading(item: Extern, old: str, new: str) -> Extern:
    args = tuple([Ref(new) if arg == Ref(old) else arg for arg in item.args])
    return msgspec.structs.replace(item, args=args)


def _renamed(nest: Nest, old: str, new: str) -> Nest:
    blocks = []
    for block in nest.blocks:
        statements = [
            msgspec.structs.replace(s, buffer=new) if isinstance(s, Read) and s.buffer == old else s
            for s in block.statements
        ]
        blocks.append(msgspec.structs.replace(block, statements=tuple(statements)))
    return msgspec.structs.replace(nest, blocks=tuple(blocks))
