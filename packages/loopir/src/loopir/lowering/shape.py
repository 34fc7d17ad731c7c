"""Views and shape prims: index arithmetic only. A view says where in its operand each of its elements lies."""

from __future__ import annotations

from collections.abc import Callable

from loopir.builder import Place, Recorder
from loopir.emitter import Typed, round_literal
from loopir.lowering.context import Call, Lowering
from stagewire import index as ix
from stagewire.expr import Dim, Expr
from stagewire.graph import NonFinite
from stagewire.loop import Index
from stagewire.types import TensorType


def lower_view(lowering: Lowering, call: Call) -> None:
    """What shows elements of its operand: a row of `VIEWS`."""
    buffer, type = call.tensor("x")
    lowering.view(call, buffer, VIEWS[call.name][1](call, type))


def _broadcast(call: Call, type: TensorType) -> Place:
    """Operand dimension k lies along result dimension broadcast_dimensions[k]; size 1 is repeated."""
    places = call.axes("broadcast_dimensions", len(call.type.shape))
    sources = [None if size == 1 else d for size, d in zip(type.shape, places, strict=True)]
    return lambda i, _: tuple([ix.ZERO if d is None else i[d] for d in sources])


def _permute(call: Call, type: TensorType) -> Place:
    """Result dimension k is operand dimension dims[k]."""
    dims = call.axes("dims", len(type.shape))
    sources = [dims.index(d) for d in range(len(dims))]
    return lambda i, _: tuple([i[d] for d in sources])


def _slice(call: Call, type: TensorType) -> Place:
    """result[i] = x[start + i*step]."""
    start, step = call.dims("start"), call.dims("step")
    return lambda i, _: tuple([ix.shift(ix.scale(k, s), o) for k, o, s in zip(i, start, step, strict=True)])


def _flip(call: Call, type: TensorType) -> Place:
    """result[i] = x[size - 1 - i] along dims."""
    dims = call.axes("dims", len(type.shape))
    ends = [size - 1 if d in dims else None for d, size in enumerate(type.shape)]
    return lambda i, _: tuple([k if e is None else ix.shift(ix.scale(k, -1), e) for k, e in zip(i, ends, strict=True)])


def _as_strided(call: Call, type: TensorType) -> Place:
    """result[i] = element offset + i . stride of x in row-major order."""
    stride, (offset,), shape = call.dims("stride"), call.dims("offset"), type.shape
    return lambda i, sizes: ix.delinear(ix.linear(i, stride, offset), shape, sizes)


def _reshape(call: Call, type: TensorType) -> Place:
    """The same elements in row-major order."""
    shape = call.type.shape
    return lambda i, sizes: ix.reshape(i, shape, type.shape, sizes)


def lower_cat(lowering: Lowering, call: Call) -> None:
    """Each operand is written to its place: one nest a piece."""
    pieces = [call.as_tensor(item) for item in call.items("tensors")]
    dim = call.axis("dim", len(call.type.shape))
    name = call.result.name
    lowering.declare(name, call.type)
    position: Dim = 0
    for buffer, type in pieces:
        if type.shape == (0,) and len(call.type.shape) != 1:
            continue  # torch lets an empty 1-D tensor into any concatenation
        offset = tuple(position if d == dim else 0 for d in range(len(type.shape)))
        lowering.fill(call, name, type.shape, lambda ops, *i, b=buffer: ops.load(b, *i), offset)
        position = position + type.shape[dim]


def lower_pad(lowering: Lowering, call: Call) -> None:
    """result[i] = x[i - low] inside, the constant outside."""
    buffer, type = call.tensor("x")
    low = call.dims("low")
    value = call.operand("value")
    other = value if isinstance(value, Expr) else round_literal(value, call.type.dtype)

    def point(ops: Recorder, *i: Index) -> Typed:
        mask: Typed | bool = True
        for k, before, size in zip(i, low, type.shape, strict=True):
            mask = ops.emitter.both(mask, ops.emitter.within(k, before, before + size))
        place = tuple(ix.shift(k, -before) for k, before in zip(i, low, strict=True))
        if isinstance(other, Expr):
            found = ops.load(buffer, *place, mask=mask)
            return found if mask is True else ops.where(mask, found, ops.number(other, call.type.dtype))
        assert isinstance(other, bool | int | float | NonFinite)
        return ops.load(buffer, *place, mask=mask, other=other)

    lowering.pointwise(call, point)


def lower_slice_scatter(lowering: Lowering, call: Call) -> None:
    """src inside the window start:stop:step, x elsewhere."""
    buffer, _ = call.tensor("x")
    source, source_type = call.tensor("src")
    start, step = call.dims("start"), call.dims("step")

    def point(ops: Recorder, *i: Index) -> Typed:
        mask: Typed | bool = True
        place = []
        for k, first, s, size in zip(i, start, step, source_type.shape, strict=True):
            mask = ops.emitter.both(mask, ops.emitter.within(k, first, first + size * s))
            from_first = ix.shift(k, -first)
            if s != 1:
                aligned = ops.eq(ops.index(ix.mod(from_first, s, ops.emitter.sizes)), 0)  # type: ignore[arg-type]
                mask = ops.emitter.both(mask, aligned)
            place.append(ix.floor_div(from_first, s, ops.emitter.sizes))  # type: ignore[arg-type]
        new = ops.load(source, *place, mask=mask)
        return new if mask is True else ops.where(mask, new, ops.load(buffer, *i))

    lowering.pointwise(call, point if 0 not in source_type.shape else lambda ops, *i: ops.load(buffer, *i))


VIEWS: dict[str, tuple[tuple[str, ...], Callable[[Call, TensorType], Place]]] = {
    "broadcast_in_dim": (("x", "shape", "broadcast_dimensions"), _broadcast),
    "permute": (("x", "dims"), _permute),
    "reshape": (("x", "shape"), _reshape),
    "slice": (("x", "start", "stop", "step"), _slice),
    "flip": (("x", "dims"), _flip),
    "as_strided": (("x", "size", "stride", "offset"), _as_strided),
    "clone": (("x",), lambda call, type: lambda i, _: i),
}
"""Parameters, and what gives the place in the operand of the element at `i`."""

TABLE = {name: (parameters, lower_view) for name, (parameters, _) in VIEWS.items()} | {
    "cat": (("tensors", "dim"), lower_cat),
    "pad": (("x", "low", "high", "value"), lower_pad),
    "slice_scatter": (("x", "src", "start", "stop", "step"), lower_slice_scatter),
}
