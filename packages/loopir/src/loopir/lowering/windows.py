"""Max pooling: the elements of a window are compared one after the other, so that vectors run along the windows.

Its gradient, on a GPU: an element gathers from the windows that cover it, few as they are, in the order in which ATen
adds them up. (On a CPU ATen goes over the windows once, and writes where each has its position.)

Convolutions of few terms (depthwise, or of few channels): the sum, written out likewise.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

from loopir.builder import Recorder
from loopir.emitter import Typed
from loopir.lowering.context import Call, Lowering
from stagewire import index as ix
from stagewire.expr import Dim, Expr
from stagewire.literals import FLOATS, wider
from stagewire.loop import Index
from stagewire.sizes import at_least, lower_bounds
from stagewire.types import DType, TensorType, numel
from stagewire.vocabulary import is_prim

MOST_TAPS = 25
"""Windows of more elements stay with ATen: the comparisons are written out."""

DTYPES = FLOATS | {"int32", "int64"}
"""ATen counts positions in the dtype of the image, and refuses an image that is too large for that of a narrow one."""


class Side(NamedTuple):
    """One dimension of a window: `size` of what is pooled, and the window's own sizes."""

    size: Dim
    window: int
    step: int
    pad: int
    dilation: int


def lower_max_pool(lowering: Lowering, call: Call) -> None:
    """The greatest element of each window and its position in the plane; the last nan, else the first of equals.

    A place in the padding stands for the element of the window next to it, which changes neither of the two.
    """
    buffer, type = call.tensor("x")
    sides = _sides(call, type)
    if sides is None:
        lower_prim_call(lowering, call)
        return
    lead = len(type.shape) - len(sides)

    def best(ops: Recorder, indices: tuple[Index, ...]) -> tuple[Typed, Typed]:
        return _best(ops, buffer, indices[:lead], _taps(ops, indices[lead:], sides), sides)

    for number, value in enumerate(call.node.results):
        assert isinstance(value.type, TensorType)
        lowering.declare(value.name, value.type)

        def body(ops: Recorder, *indices: Index, number: int = number, name: str = value.name) -> None:
            ops.store(name, indices, best(ops, indices)[number])

        lowering.nest(call, value.type.shape, body)


def _sides(call: Call, type: TensorType) -> list[Side] | None:
    """The window, or None where ATen computes it: where padding may lie between a window's elements, say."""
    if type.dtype not in DTYPES:
        return None
    window, dilation = call.dims("kernel"), call.dims("dilation")
    sizes = type.shape[len(type.shape) - len(window) :]
    sides = [
        Side(*side) for side in zip(sizes, window, call.dims("stride"), call.dims("padding"), dilation, strict=True)
    ]  # type: ignore[arg-type]
    if call.arguments.get("ceil_mode") and any(isinstance(n, Expr) for n in sizes):
        return None
    known = all(isinstance(n, int) for side in sides for n in side[1:])
    if not known or prod(side.window for side in sides) > MOST_TAPS or 0 in sizes:
        return None
    overhangs = call.arguments.get("ceil_mode") or any(side.pad for side in sides)
    return None if overhangs and any(side.dilation > 1 for side in sides) else sides


def _taps(ops: Recorder, indices: tuple[Index, ...], sides: list[Side]) -> list[list[Index]]:
    """For each dimension, where the window at `indices` has its elements, moved out of the padding."""
    return [
        [
            _inside(ops, ix.shift(ix.scale(i, side.step), k * side.dilation - side.pad), side, k)
            for k in range(side.window)
        ]
        for i, side in zip(indices, sides, strict=True)
    ]


def _inside(ops: Recorder, place: Index, side: Side, tap: int) -> Index:
    """`place`, or the end of 0 <= place < size that is nearest to it."""
    sizes, size = ops.emitter.sizes, side.size
    bounds = ix.bounds_of(place, sizes)
    assert bounds is not None, "a place is a multiple of a coordinate and a number"
    low, high = bounds
    lower = lower_bounds(sizes.values())
    is_low, is_high = not at_least(low, 0, lower), not at_least(size - 1 - high, 0, lower)
    if isinstance(size, Expr):  # no window hangs over: its last element lies in the padding at most
        is_high &= side.pad > side.dilation * (side.window - 1 - tap)
    if not is_low and not is_high:
        return place
    value = ops.index(place)
    value = ops.maximum(value, 0) if is_low else value
    return ops.emitter.place(ops.minimum(value, ops.index(ix.constant(size - 1))) if is_high else value)


def _best(
    ops: Recorder, buffer: str, lead: tuple[Index, ...], taps: list[list[Index]], sides: list[Side]
) -> tuple[Typed, Typed]:
    first, *rest = product(*taps)
    value, at = ops.load(buffer, *lead, *first), ops.index(_position(first, sides))
    for place in rest:
        one = ops.load(buffer, *lead, *place)
        position = ops.index(_position(place, sides))
        better = [ops.gt(one, value)]
        if one.dtype in FLOATS:  # a select of its own: compilers make branches of a condition with an or
            better.append(ops.isnan(one))
        for condition in better:
            value, at = ops.where(condition, one, value), ops.where(condition, position, at)
    return value, at


def _position(place: tuple[Index, ...], sides: list[Side]) -> Index:
    """The row-major position in a plane."""
    steps = [numel(tuple(side.size for side in sides[number + 1 :])) for number in range(len(sides))]
    return ix.linear(place, steps)


def lower_max_pool_backward(lowering: Lowering, call: Call) -> None:
    """The sum of the gradients of those windows whose position an element is."""
    (grad, windows), (indices, _), (_, type) = (call.tensor(name) for name in ("grad", "indices", "x"))
    sides = _sides(call, type)
    if type.device == "cpu" or sides is None or any(side.dilation > 1 for side in sides):
        lower_prim_call(lowering, call)
        return
    lead = len(type.shape) - len(sides)
    wide: DType = "float64" if type.dtype == "float64" else "float32"

    def gathered(ops: Recorder, *at: Index) -> Typed:
        mine = ops.index(_position(at[lead:], sides))
        total: Typed | None = None
        for covering in product(*map(partial(_covering, ops), at[lead:], sides)):
            mask: Typed | bool = True
            for window, count in zip(covering, windows.shape[lead:], strict=True):
                mask = ops.emitter.both(mask, ops.emitter.within(window, 0, count))
            place = (*at[:lead], *covering)
            found = ops.eq(ops.load(indices, *place, mask=mask, other=-1), mine)
            share = ops.where(found, ops.convert(ops.load(grad, *place, mask=mask), wide), 0.0)
            total = share if total is None else ops.add(total, share)
        assert total is not None
        return ops.convert(total, type.dtype)

    lowering.pointwise(call, gathered)


def _covering(ops: Recorder, place: Index, side: Side) -> list[Index]:
    """The windows that may cover a place, below the first or behind the last perhaps: all others do not."""
    last = ix.floor_div(ix.shift(place, side.pad), side.step, ops.emitter.sizes)
    return [ix.shift(last, -back) for back in reversed(range(-(-side.window // side.step)))]


def lower_direct_conv(lowering: Lowering, call: Call) -> None:
    """Written out: vectors run along the channels of the result. Half precision is summed in float32, rounded once."""
    (buffer, type), (weight, kernel) = call.tensor("x"), call.tensor("weight")
    stride, dilation = call.dims("stride"), call.dims("dilation")
    rows, dtype, rank = lowering.copied(weight), wider(call.type.dtype), len(type.shape) - 2

    def point(ops: Recorder, image: Index, *i: Index) -> Typed:
        *out, channel = i
        total: Typed | None = None
        for term in product(*map(range, kernel.shape[:-1])):  # type: ignore[arg-type]
            sides = zip(out, stride, term, dilation, strict=False)
            place = [ix.shift(ix.scale(k, step), n * reach) for k, step, n, reach in sides]
            source = ix.constant(term[rank]) if len(term) > rank else channel
            element = ops.convert(ops.load(buffer, image, *place, source), dtype)
            factor = ops.convert(ops.load(rows, *map(ix.constant, term), channel), dtype)
            total = ops.mul(element, factor) if total is None else ops.fma(element, factor, total)
        assert total is not None
        return ops.convert(total, call.type.dtype)

    lowering.pointwise(call, point)


def lower_prim_call(lowering: Lowering, call: Call) -> None:
    """The call that `PRIM_CALLS` names."""
    lowering.aten(call, PRIM_CALLS[call.name])


PRIM_CALLS = {
    "philox_state": "stagefold.philox_state.default",
    **{f"max_pool{n}d": f"aten.max_pool{n}d_with_indices.default" for n in (2, 3)},
    **{f"max_pool{n}d_backward": f"aten.max_pool{n}d_with_indices_backward.default" for n in (2, 3)},
}


def is_call(target: str) -> bool:
    """Whether a node is a call of ATen (or of the user) rather than loops.

    >>> is_call("aten.mm.default"), is_call("prims.max_pool2d"), is_call("prims.add")
    (True, True, False)
    """
    namespace, _, name = target.partition(".")
    return not is_prim(target) or (namespace == "prims" and name in PRIM_CALLS)


_WINDOWS = ("kernel", "stride", "padding", "dilation", "ceil_mode")
TABLE = {
    "philox_state": (("count", "device"), lower_prim_call),
    "direct_conv": (("x", "weight", "stride", "dilation"), lower_direct_conv),
}
TABLE |= {f"max_pool{n}d": (("x", *_WINDOWS), lower_max_pool) for n in (2, 3)}
TABLE |= {f"max_pool{n}d_backward": (("grad", "x", *_WINDOWS, "indices"), lower_max_pool_backward) for n in (2, 3)}
