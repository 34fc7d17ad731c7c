"""Passes: products of matrices whose sizes the matrix units of a GPU like.

These units are fed in pieces of 16 bytes: a product with another number of elements along the memory of a factor or of
the result takes three to seven times as long. A vocabulary of 50,257 words in bfloat16 is such a number; a product of
50,264 words computes 7 columns too many and is done in a seventh of the time. One of 50,256 words and one of the last
need no copy of the weight besides (GPT-2, 8 x 512, on an H200: 2828 us, and 2794).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from loopir.builder import Recorder, record
from loopir.layout import packed, stride_order
from loopir.passes.alias_views import strides_on, window_of
from loopir.schedule import Item, Names, Rewriting, Schedule, output_names, read_by_calls
from stagewire import index as ix
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.literals import HALVES
from stagewire.loop import Buffer, Decision, Extern, Index, Kernel, Load, Store
from stagewire.sizes import NO_HINTS, Hints, rough
from stagewire.statements import map_buffers, reads_of, writes_of
from stagewire.types import ITEM_SIZE, TensorType, numel

PRODUCTS = {"aten.mm.default": 0, "aten.bmm.default": 0, "aten.addmm.default": 1}
"""Products of matrices, and the place of the first factor among the arguments; a bias stands before it."""

PIECE = 16

Sizes = Mapping[int, int]
"""New sizes of dimensions. Symbolic ones stay as they are."""


@dataclass(frozen=True)
class Gain:
    """When padding pays: seconds saved for each multiplication and addition, bytes that a copy moves in a second,
    seconds that a launch takes."""

    saved: float = 5e-15
    bandwidth: float = 3e12
    launch: float = 4e-6


class Product(NamedTuple):
    """One product: names of its factors, bias and result; (rows, inner, columns) as they are and as they should be.

    work: about how many multiplications it takes.
    """

    left: str
    right: str
    bias: str | None
    result: str
    sizes: tuple[Dim, Dim, Dim]
    padded: tuple[Dim, Dim, Dim]
    work: int

    @property
    def requests(self) -> tuple[tuple[str, Sizes], ...]:
        """What is wanted of each operand."""
        (m, k, n), (rows, inner, columns) = self.sizes, self.padded
        wanted = [(self.left, {-2: (m, rows), -1: (k, inner)}), (self.right, {-2: (k, inner), -1: (n, columns)})]
        if self.bias is not None:
            wanted.append((self.bias, {-1: (n, columns)}))
        return tuple((name, {d: new for d, (old, new) in dims.items() if old != new}) for name, dims in wanted)  # type: ignore[misc]


@dataclass(frozen=True)
class PadResults:
    """Before: a product has the sizes that the program gives it. After: where that pays, its result has more rows or
    columns, and a nest copies those that are meant; the inliner lets later nests read them where they are. Where a
    factor would be copied for more columns, there are two products instead: of a good number, and of the others."""

    name = "pad_results"
    gain: Gain = Gain()

    def run(self, schedule: Schedule) -> Schedule:
        state = Rewriting(schedule)
        buffers, names = state.buffers, state.names
        kept = output_names(schedule) | read_by_calls(schedule)
        given = _windows_on_given(schedule)
        items: list[Item] = []
        for item in schedule.items:
            items.append(item)
            product = product_of(item, buffers, schedule.hints)
            if product is None:
                continue
            columns = _columns_to_split_off(product, buffers, given)
            if columns is not None and _two_pay(product, schedule, product.result in kept, self.gain):
                items[-1:] = _in_two(product, columns, buffers, names)
                continue
            if not _pays(product, schedule, buffers, given, product.result in kept, self.gain):
                continue
            (rows, _, columns), type = product.padded, buffers[product.result].type
            if (rows, columns) == type.shape[-2:]:
                continue
            whole = f"{product.result}_padded"
            buffers[whole] = Buffer(whole, enlarged(type, {-2: rows, -1: columns}), "extern")
            buffers[product.result] = Buffer(product.result, type, "kernel")
            items[-1] = replace(item, results=(whole,))  # type: ignore[type-var]
            items.append(copying(whole, product.result, buffers, names, type.shape))
        return state.with_items(items)


def _columns_to_split_off(product: Product, buffers: Mapping[str, Buffer], given: Set[str]) -> int | None:
    """How many columns are too many for a good number of them, where nothing else is no good number, and more of them
    would be a copy of the second factor; any part of its columns is a window on it."""
    type, columns = buffers[product.right].type, product.sizes[2]
    if len(type.shape) != 2 or type.stride[0] != 1 or not isinstance(columns, int):
        return None
    if product.padded[:2] != product.sizes[:2] or product.padded[2] == columns:
        return None
    if buffers[product.right].role == "kernel" and product.right not in given:
        return None
    rest = columns % (PIECE // ITEM_SIZE[type.dtype])
    return rest if rest < columns else None


def _two_pay(product: Product, schedule: Schedule, keeps_result: bool, gain: Gain) -> bool:
    """Whether the time that is saved is more than twice that of another product, which reads the first factor again,
    and of copying the result: that takes memory, too."""
    rows, inner, columns = product.sizes
    moved = rough(rows * inner, schedule.hints) + (2 * rough(rows * columns, schedule.hints) if keeps_result else 0)
    size = ITEM_SIZE[schedule.buffers[product.left].type.dtype]
    return 2 * (2 * gain.launch + moved * size / gain.bandwidth) < product.work * gain.saved


def _in_two(product: Product, rest: int, buffers: dict[str, Buffer], names: Names) -> Iterator[Item]:
    """The products of all columns but the last, and of these; their factors are windows."""
    (rows, inner, columns), result, factor = product.sizes, buffers[product.result].type, buffers[product.right].type
    buffers[product.result] = Buffer(product.result, result, "kernel")
    for start, count in ((0, columns - rest), (columns - rest, rest)):  # type: ignore[operator]
        window, part = f"{product.right}_{names('from')}", f"{product.result}_{names('from')}"
        window_type = replace(factor, shape=(inner, count), storage_offset=0)
        buffers[window] = Buffer(window, window_type, "kernel")
        buffers[part] = Buffer(part, packed(result, (rows, count), (0, 1)), "extern")
        yield copying(product.right, window, buffers, names, (inner, count), source_start=start)
        if product.bias is None:
            yield Extern("aten.mm.default", (Ref(product.left), Ref(window)), {}, (part,))
        else:
            bias = f"{product.bias}_{names('from')}"
            type_ = replace(buffers[product.bias].type, shape=(count,), storage_offset=0)
            buffers[bias] = Buffer(bias, type_, "kernel")
            yield copying(product.bias, bias, buffers, names, (count,), source_start=start)
            yield Extern("aten.addmm.default", (Ref(bias), Ref(product.left), Ref(window)), {}, (part,))
        yield copying(part, product.result, buffers, names, (rows, count), target_start=start)


@dataclass(frozen=True)
class PadOperands:
    """Before: a product may have a larger result than its factors give, or an inner size that its units do not like.
    After: its factors have the sizes of its result, zeros standing where there was nothing. Buffers that nests write
    are enlarged where they are; other tensors are copied, once for all products that read them."""

    name = "pad_operands"
    gain: Gain = Gain()

    def run(self, schedule: Schedule) -> Schedule:
        products = {}
        given = _windows_on_given(schedule)
        for number, item in enumerate(schedule.items):
            product = product_of(item, schedule.buffers, schedule.hints)
            if product is not None:
                decided = self._decided(product, schedule, given)
                if any(request for _, request in decided.requests):
                    products[number] = decided
        return _Operands(schedule, products).result() if products else schedule

    def _decided(self, product: Product, schedule: Schedule, given: Set[str]) -> Product:
        """The product in the size of its result; the inner size is padded where that pays."""
        buffers = schedule.buffers
        rows, columns = buffers[product.result].type.shape[-2:]
        inner = product.padded[1] if _pays(product, schedule, buffers, given, False, self.gain) else product.sizes[1]
        return product._replace(padded=(rows, inner, columns))


class _Operands(Rewriting):
    """Buffers and items while operands are enlarged.

    before: nests to stand before an item, by its number; fixed: buffers whose sizes somebody else sees; asked: what
    the products ask of each of their operands; windows: buffers that are windows before any is enlarged; copies:
    enlarged copies, by what they are of; first: the item before which a copy is wanted first.
    """

    def __init__(self, schedule: Schedule, products: Mapping[int, Product]) -> None:
        super().__init__(schedule)
        self.items = list(schedule.items)
        self.before: dict[int, list[Item]] = {}
        self.first: dict[str, int] = {}
        self.copies: dict[tuple[str, tuple[tuple[int, int], ...]], str] = {}
        self.fixed = set(output_names(schedule))
        self.fixed.update(b.base for b in self.buffers.values() if b.base is not None)
        self.asked: dict[str, list[Sizes]] = {}
        self.writers: dict[str, list[int]] = {}
        for number, item in enumerate(self.items):
            if number in products:
                for name, request in products[number].requests:
                    self.asked.setdefault(name, []).append(request)
            elif isinstance(item, Extern):
                self.fixed.update(reads_of(item))
            for name in writes_of(item):
                self.writers.setdefault(name, []).append(number)
        nests = {name: nest for name in self.writers if (nest := self._nest(name)) is not None}
        self.windows = {name for name, nest in nests.items() if window_of(nest, self.buffers) is not None}
        for number, product in products.items():
            renamed = {name: self.operand(name, request, number) for name, request in product.requests}
            call = self.items[number]
            assert isinstance(call, Extern)
            args = tuple([Ref(renamed[a.name]) if isinstance(a, Ref) else a for a in call.args])
            self.items[number] = replace(call, args=args)

    def operand(self, name: str, request: Sizes, number: int) -> str:
        """The buffer that item `number` reads in the place of `name`."""
        if not request or self._has(name, request):
            return name
        return name if self._enlarge(name, request) else self._copy(name, request, number)

    def _has(self, name: str, request: Sizes) -> bool:
        return all(self.buffers[name].type.shape[d] == size for d, size in request.items())

    def _enlarge(self, name: str, request: Sizes) -> bool:
        """Give a buffer that nests write more elements; what it is a window on has them too, or is copied."""
        buffer = self.buffers[name]
        if buffer.role != "kernel" or name in self.fixed or any(other != request for other in self.asked.get(name, ())):
            return False
        type, nest = buffer.type, self._nest(name)
        if nest is None or name not in self.windows:
            self.buffers[name] = replace(buffer, type=enlarged(type, request))
            self._fill(name, type, min(self.writers[name]))
            return True
        read = next(s for s in nest.sections[0].statements if isinstance(s, Load))
        source = self._of_source(nest, read, request)
        if source is None:  # a window of which the new elements are no part: a copy of its own
            self.buffers[name] = replace(buffer, type=enlarged(type, request))
            self._fill(name, type, self.writers[name][0])
            return True
        if not self._has(read.buffer, source) and not self._enlarge(read.buffer, source):
            copy = self._copy(read.buffer, source, self.writers[name][0])
            self.items[self.writers[name][0]] = nest = map_buffers(nest, {read.buffer: copy})
            read = replace(read, buffer=copy)
        shape = enlarged(type, request).shape
        self.buffers[name] = replace(
            buffer, type=TensorType(type.dtype, shape, self._strides(nest, read, type), device=type.device)
        )
        return True

    def _nest(self, name: str) -> Kernel | None:
        numbers = self.writers.get(name, [])
        item = self.items[numbers[0]] if len(set(numbers)) == 1 else None
        return item if isinstance(item, Kernel) else None

    def _of_source(self, nest: Kernel, read: Load, request: Sizes) -> Sizes | None:
        """The request in the dimensions of what the window is on; None where they are not such dimensions."""
        write = next(s for s in nest.sections[0].statements if isinstance(s, Store))
        places = {axis: d for d, c in enumerate(read.index) if (axis := ix.single_axis(c)) is not None}
        before, after = self.buffers[write.buffer].type.shape, self.buffers[read.buffer].type.shape
        found: dict[int, int] = {}
        for d, size in request.items():
            axis = ix.single_axis(write.index[d])
            if axis not in places or after[places[axis]] not in (before[d], size):
                return None
            found[places[axis] - len(after)] = size
        return found

    def _strides(self, nest: Kernel, read: Load, type: TensorType) -> tuple[Dim, ...]:
        write = next(s for s in nest.sections[0].statements if isinstance(s, Store))
        steps = strides_on(read.index, self.buffers[read.buffer].type)
        assert steps is not None
        axes = [ix.single_axis(c) if c.terms else "" for c in write.index]
        return tuple(steps.get(axis or "", old) for axis, old in zip(axes, type.stride, strict=True))  # type: ignore[misc]

    def _copy(self, name: str, request: Sizes, number: int) -> str:
        """A larger copy, for item `number` and others that want the same: made just before the first of them."""
        key = (name, tuple(sorted(request.items())))
        if key not in self.copies:
            copy = self.copies[key] = self.names(f"{name}_padded")
            type = self.buffers[name].type
            self.buffers[copy] = Buffer(copy, enlarged(type, request), "kernel")
            self.decisions.append(
                Decision("materialised", (copy, name), "sizes of multiples of 16 bytes, for products")
            )
        copy = self.copies[key]
        self.first[copy] = min(number, self.first.get(copy, number))
        return copy

    def _copying(self) -> None:
        """Let the nests that make the copies stand where these are first wanted."""
        for (name, _), copy in self.copies.items():
            type = self.buffers[name].type
            self._fill(copy, type, self.first[copy])
            nest = copying(name, copy, self.buffers, self.names, type.shape)
            self.before.setdefault(self.first[copy], []).append(nest)

    def _fill(self, name: str, old: TensorType, number: int) -> None:
        """Zeros in the elements that are new, before item `number`."""
        shape = self.buffers[name].type.shape
        for d, (size, new) in enumerate(zip(old.shape, shape, strict=True)):
            if size != new:
                region = (*old.shape[:d], new - size, *shape[d + 1 :])
                nest = _zeros(f"{name}_zeros{d}", name, region, d, size, self.buffers, self.names)
                self.before.setdefault(number, []).append(nest)

    def result(self) -> Schedule:
        self._copying()
        items = [one for number, item in enumerate(self.items) for one in (*self.before.get(number, ()), item)]
        return self.with_items(items)


def product_of(item: Item, buffers: Mapping[str, Buffer], hints: Hints = NO_HINTS) -> Product | None:
    """A product in half precision on a CUDA device; None for anything else."""
    if not isinstance(item, Extern) or item.target not in PRODUCTS or item.kwargs:
        return None
    start = PRODUCTS[item.target]
    if len(item.args) != start + 2 or not all(isinstance(arg, Ref) and arg.name in buffers for arg in item.args):
        return None
    names = [arg.name for arg in item.args if isinstance(arg, Ref)]
    left, right, result = (buffers[name].type for name in (*names[start:], item.results[0]))
    bias = names[0] if start else None
    if not left.device.startswith("cuda") or left.dtype not in HALVES or 0 in (*left.shape, *right.shape):
        return None
    if bias is not None and len(buffers[bias].type.shape) != 1:
        return None
    sizes = (left.shape[-2], left.shape[-1], right.shape[-1])
    along = [(left, (0, 1)), (right, (1, 2)), (result, (0, 2))]
    fast = {pair[k] for type, pair in along for k in (0, 1) if type.stride[k - 2] == 1 and type.shape[k - 2] != 1}
    several = PIECE // ITEM_SIZE[left.dtype]
    padded = [-(-n // several) * several if d in fast and isinstance(n, int) else n for d, n in enumerate(sizes)]
    work = rough(numel((*left.shape, right.shape[-1])), hints)
    return Product(
        names[start], names[start + 1], bias, item.results[0], sizes, (padded[0], padded[1], padded[2]), work
    )


def _windows_on_given(schedule: Schedule) -> Set[str]:
    """Buffers that are copied from what kernels do not make, by nests that a view replaces later."""
    found: set[str] = set()
    for nest in schedule.kernels:
        if (window := window_of(nest, schedule.buffers)) is not None:
            base = window.base or ""
            if base in found or schedule.buffers[base].role != "kernel":
                found.add(window.name)
    return found


def _pays(product: Product, schedule: Schedule, buffers: Mapping[str, Buffer], given: Set[str], keeps_result: bool,
          gain: Gain) -> bool:  # fmt: skip
    """Whether the time that is saved is more than that of copying what cannot be enlarged where it is."""
    moved = [name for name, ask in product.requests if ask and (buffers[name].role != "kernel" or name in given)]
    moved += [product.result] if keeps_result else []
    count = sum(rough(numel(buffers[name].type.shape), schedule.hints) for name in moved)
    copying_takes = (2 * count * ITEM_SIZE[buffers[product.left].type.dtype]) / gain.bandwidth
    return product.padded != product.sizes and gain.launch + copying_takes < product.work * gain.saved


def enlarged(type: TensorType, sizes: Sizes) -> TensorType:
    """Dense, the dimensions in the same order in memory, some of them larger."""
    shape = list(type.shape)
    for d, size in sizes.items():
        shape[d] = size
    return packed(type, tuple(shape), stride_order(type.shape, type.stride))


def copying(source: str, target: str, buffers: Mapping[str, Buffer], names: Names, shape: tuple[Dim, ...], *,
            source_start: int = 0, target_start: int = 0) -> Kernel:  # fmt: skip
    """A nest that copies so many elements along each dimension of a buffer to another: the first ones, or those from a
    place of the last dimension on."""

    def body(ops: Recorder, *place: Index) -> None:
        there, here = ((*place[:-1], ix.shift(place[-1], n)) if n else place for n in (target_start, source_start))
        ops.store(target, there, ops.load_buffer(source, here))

    types = {name: buffers[name].type for name in (source, target)}
    return record(target, types, shape, body, names=names, origins=(target,))


def _zeros(name: str, target: str, region: tuple[Dim, ...], d: int, start: Dim, buffers: Mapping[str, Buffer],
           names: Names) -> Kernel:  # fmt: skip
    """A nest that writes zeros into a region that begins at `start` along dimension d."""

    def body(ops: object, *place: Index) -> None:
        there = tuple([ix.shift(i, start) if k == d else i for k, i in enumerate(place)])
        ops.store(target, there, 0.0)  # type: ignore[attr-defined]

    return record(name, {target: buffers[target].type}, region, body, names=names, origins=(target,))
