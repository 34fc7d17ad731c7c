"""Depthwise convolutions over one or two dimensions, and their gradients, as kernels in place of a call of ATen.

ATen's own kernels load each element of a window for itself, and sum the gradient of a weight in one block a tap: planes
take 3 to 16 times as long there, and cuDNN up to 6 times where channels are fastest (docs/gpu.md has the table).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from codegen.triton import stencils, tuning
from codegen.triton.emit import LARGEST_32, wide_constant
from codegen.triton.plan import MOST_SECOND_PROGRAMS, power_of_two
from codegen.triton.products import DTYPES, Make, Types
from codegen.triton.tuning import WARP
from stagewire.expr import Dim, Expr
from stagewire.graph import Arg, List, Ref, Tuple
from stagewire.loop import Extern
from stagewire.program import Allocate, CallExtern, Instruction, KernelInfo, Launch, Release
from stagewire.sizes import Hints, rough
from stagewire.types import TensorType, contiguous, extent, numel

Pair = tuple[int, int]

NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "transposed", "output_padding", "groups")
FORWARD, BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
PARAMETERS = {FORWARD: NAMES, BACKWARD: ("grad", "input", "weight", "bias_sizes", *NAMES[3:], "output_mask")}

LAST_DTYPES = frozenset(("float16", "bfloat16"))
"""Those in which it was measured where channels are fastest."""


@dataclass(frozen=True)
class Depthwise:
    """A call. bias, grad: "" where it takes none. step, pad, dilation: of rows and of columns."""

    image: str
    weight: str
    bias: str
    grad: str
    step: Pair
    pad: Pair
    dilation: Pair


def depthwise_of(call: Extern, types: Types) -> Depthwise | None:
    """A call that kernels of ours can compute."""
    names = PARAMETERS.get(call.target)
    if names is None or call.kwargs or len(call.args) != len(names):
        return None
    given = dict(zip(names, call.args, strict=True))
    match given:
        case {"input": Ref(image), "weight": Ref(weight), "transposed": False, "groups": int(groups)}:
            bias, grad = (one.name if isinstance(one := given.get(name), Ref) else "" for name in ("bias", "grad"))
        case _:
            return None
    buffers = [image, weight, *filter(None, (bias, grad, *call.results))]
    if not all(name in types and _is_plain(types[name]) for name in buffers):
        return None
    shape, taps = types[image].shape, types[weight].shape
    if len({(types[name].dtype, types[name].device) for name in buffers}) != 1 or len(shape) not in (3, 4):
        return None
    if taps[:2] != (groups, 1) or shape[1] != groups or not 1 < groups <= MOST_SECOND_PROGRAMS:
        return None
    if types[image].stride[1] == 1 and types[image].dtype not in LAST_DTYPES:
        return None
    moves = [_pair(given[name]) for name in ("stride", "padding", "dilation")]
    if numel(taps[2:]) > tuning.SM_90.most_taps or None in moves:  # type: ignore[operator]
        return None
    if len(shape) == 3:  # images of one row
        moves = [(one, move[1]) for one, move in zip((1, 0, 1), moves, strict=True)]  # type: ignore[index]
    return Depthwise(image, weight, bias, grad, *moves)  # type: ignore[arg-type]


def _pair(arg: Arg) -> Pair | None:
    """Two numbers, given as two or as one for both."""
    items: Any = arg.items if isinstance(arg, List | Tuple) else ()
    if len(items) not in (1, 2) or not all(isinstance(item, int) for item in items):
        return None
    return (items[0], items[-1])


def _is_plain(type_: TensorType) -> bool:
    """Known but for the number of images, small enough for indices of 32 bits, of a dtype that is summed in float32."""
    reach = extent(type_)
    fits = isinstance(reach, Expr) or reach <= LARGEST_32
    known = all(isinstance(n, int) for n in (*type_.shape[1:], *type_.stride))
    return known and fits and type_.dtype in DTYPES and 0 not in type_.shape


def stand_in(call: Extern, found: Depthwise, types: Types, hints: Hints, name: str, make: Make) -> list[Instruction]:
    """What computes the call's results; nothing where ATen is as fast. `name` begins the names of what is made."""
    writer = _Writer(found, types, hints, name, make)
    if call.target == FORWARD:
        return writer.forward(*call.results) if writer.makes_well(call.results[0]) else []
    image, weight, bias = call.results
    sums = bool(weight) and writer.sums_well()
    rest = [writer.rest(call, ("", "" if sums else weight, bias))] if bias or (weight and not sums) else []
    return rest + (writer.covered(image) if image else []) + (writer.gradient(weight) if sums else [])


@dataclass(frozen=True)
class _Tile:
    """lanes, channels: of a tile. grid: programs of so many `tiles` each."""

    lanes: int
    channels: int
    warps: int
    tiles: int
    grid: tuple[Dim, ...]


@dataclass(frozen=True)
class _Writer:
    call: Depthwise
    types: Types
    hints: Hints
    name: str
    make: Make

    def rest(self, call: Extern, results: tuple[str, ...]) -> Instruction:
        """The call for some of its results."""
        *args, _ = call.args
        types = tuple(self.types[name] if name else None for name in results)
        return CallExtern(call.target, (*args, List(tuple(map(bool, results)))), {}, results, types)

    def makes_well(self, result: str) -> bool:
        """Whether the result is better made here."""
        t, (taps, places) = tuning.SM_90, self.sizes(result)
        return self.types[result].stride[1] != 1 or taps <= t.large_window or places > t.few_windows

    def sums_well(self) -> bool:
        """Whether the gradient of the weight is better summed here."""
        t, (taps, places) = tuning.SM_90, self.sizes(self.call.grad)
        return self.types[self.call.grad].stride[1] != 1 or (taps <= t.small_window and places > t.few_summed_windows)

    def sizes(self, points: str) -> Pair:
        """Elements of a window, and places in all images."""
        number, _, *lengths = self.types[points].shape
        return numel(self.types[self.call.weight].shape[2:]), rough(numel((number, *lengths)), self.hints)  # type: ignore

    def forward(self, result: str) -> list[Instruction]:
        stencil = self.stencil(stencils.window_side, self.call.image, result)
        return self.image(stencil, self.call.image, self.call.bias, result)

    def covered(self, result: str) -> list[Instruction]:
        """The gradient of the image."""
        return self.image(self.stencil(stencils.covering_side, self.call.grad, result), self.call.grad, "", result)

    def image(self, stencil: stencils.Stencil, operand: str, bias: str, result: str) -> list[Instruction]:
        tile = _tile(stencil, self.hints)
        name = f"{self.name}_image"
        text = stencils.emit_image(name, stencil, bool(bias), stencil.channels % tile.channels == 0)
        buffers = (operand, self.call.weight, *filter(None, (bias,)), result)
        launch = self.launch(name, text, tile, {one: self.types[one] for one in buffers}, stencil.lanes)
        return [Allocate(result, self.types[result]), launch]

    def gradient(self, result: str) -> list[Instruction]:
        """The gradient of the weight: of parts of all lanes, which are then added up."""
        stencil = self.stencil(stencils.window_side, self.call.image, self.call.grad)
        tile = _summing_tile(stencil, self.hints)
        count, parts, name = stencil.count, tile.grid[0], f"{self.name}_weight"
        made, own, type_ = result, stencil, self.types[result]
        if parts != 1:
            made, own = f"{result}_parts", dataclasses.replace(stencil, weight=stencil.part)
            type_ = contiguous("float32", (parts, count), type_.device)
        text = stencils.emit_weight(name, own, count, stencil.channels % tile.channels == 0)
        operands = {one: self.types[one] for one in (self.call.image, self.call.grad)}
        summed: list[Instruction] = [
            Allocate(made, type_),
            self.launch(name, text, tile, operands | {made: type_}, stencil.lanes),
        ]
        if parts == 1:
            return summed
        name, wide = f"{self.name}_total", min(tuning.SM_90.total_parts, power_of_two(rough(parts, self.hints)))
        each = max(1, min(tuning.SM_90.total_rows, tuning.SM_90.total_tile // wide))
        tile = _Tile(each, wide, 4, 1, (-(-count // each),))
        buffers = {made: type_, result: self.types[result]}
        total = self.launch(name, stencils.emit_total(name, stencil, parts), tile, buffers, parts)
        return [*summed, Allocate(result, self.types[result]), total, Release(made)]

    def stencil(self, side: Callable[..., stencils.Side], operand: str, other: str) -> stencils.Stencil:
        """The sums over windows of `operand` for the points of `other`."""
        call, weight = self.call, _with_rows(self.types[self.call.weight])
        source, points = (_with_rows(self.types[name]) for name in (operand, other))
        unit = call.step if side is stencils.covering_side else (1, 1)
        block = _block(points, weight.shape[2:], unit, other == call.grad)  # type: ignore[arg-type]
        shapes = source.shape[2:], points.shape[2:], weight.shape[2:]
        rows, columns = map(side, *shapes, call.step, call.pad, call.dilation, block)
        (number, channels, *_), strides = points.shape, (weight.stride[0], *weight.stride[2:])
        return stencils.Stencil(
            number, channels, rows, columns, weight.shape[2:], source.stride, points.stride, strides
        )  # type: ignore

    def launch(self, name: str, text: str, tile: _Tile, buffers: dict[str, TensorType], size: Dim) -> Launch:
        sizes = () if isinstance(size, int) else (size,)
        constants = (
            *wide_constant(sizes),
            *zip(stencils.CONSTANTS, (tile.lanes, tile.channels, tile.tiles), strict=True),
        )
        info = KernelInfo(name, tuple(buffers), tile.grid, constants, tile.warps)
        return self.make(text, info, buffers, sizes)


def _with_rows(type_: TensorType) -> TensorType:
    """Images of one dimension are of one row."""
    if len(type_.shape) == 4:
        return type_
    (*shape, length), (*strides, step) = type_.shape, type_.stride
    return replace(type_, shape=(*shape, 1, length), stride=(*strides, 0, step))


def _block(points: TensorType, taps: Pair, step: Pair, is_sum: bool) -> Pair:
    """Rows and columns of a lane's block. step: what each is a multiple of. is_sum: over the points, for each tap."""
    rows, columns, count = points.shape[2], points.shape[3], taps[0] * taps[1]
    t = tuning.SM_90
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    is_last = points.stride[1] == 1
    has_pairs = count <= t.small_window and columns % 2 == 0 and (is_last or is_sum or columns > t.pair_columns)
    along = step[1] if step[1] > 1 else 1 + has_pairs
    most = t.most_block_rows if is_last or step[0] == 1 else rows // t.lanes_in_a_row
    products = t.most_products * step[0] * step[1] // (count * along)
    return _made(rows, taps[0], step[0], min(most, products)), along


def _made(length: int, taps: int, unit: int, most: int) -> int:
    """How many neighbours of `length` a lane makes. Each has another element to load, beside those of a window that any
    has: least are loaded, and more is made where that is as little."""
    sizes = range(unit, max(unit, most) + 1, unit)
    return min(sizes, key=lambda made: (-(-length // made) * (2 * made + taps - 1), -made))


def _tile(stencil: stencils.Stencil, hints: Hints) -> _Tile:
    """One that makes an image."""
    t, (lanes, channels, warps) = tuning.SM_90, _sizes(stencil, 4)
    across, programs = -(-stencil.channels // channels), -(-rough(stencil.lanes, hints) // lanes)
    tiles = max(1, min(t.most_image_tiles, programs * across * warps // (t.multiprocessors * t.resident_warps)))
    return _Tile(lanes, channels, warps, tiles, (_parts(stencil.lanes, lanes * tiles), across))


def _summing_tile(stencil: stencils.Stencil, hints: Hints) -> _Tile:
    """One that sums over its tiles. Sums of several warps have to be added up: it has one, unless channels are few."""
    t, (lanes, channels, warps) = tuning.SM_90, _sizes(stencil, 1)
    if -(-stencil.channels // channels) * t.most_weight_parts < t.multiprocessors * t.summing_warps:
        lanes, channels, warps = _sizes(stencil, 4)
    across, programs = -(-stencil.channels // channels), -(-rough(stencil.lanes, hints) // lanes)
    most = min(t.most_weight_parts, t.most_weight_sums // stencil.count)
    parts = max(1, min(most, programs, t.multiprocessors * t.summing_warps // (across * warps)))
    tiles = -(-programs // parts)
    return _Tile(lanes, channels, warps, tiles, (_parts(stencil.lanes, lanes * tiles), across))


def _parts(count: Dim, length: int) -> Dim:
    return (count + (length - 1)) // length


def _sizes(stencil: stencils.Stencil, warps: int) -> tuple[int, int, int]:
    """Lanes and channels of a tile, and its warps: a thread has one lane, or two channels that lie side by side."""
    if stencil.other[1] != 1:
        return warps * WARP, 1, warps
    channels = next((wide for wide in (64, 32, 16) if stencil.channels % wide == 0), 32)
    return warps * 2 * WARP // channels, channels, warps
