"""Views and shape prims: index arithmetic only. A view says where in its operand each of its elements lies."""

from __future__ import annotations

from loopir.builder import Recorder
from loopir.emitter import Typed, round_literal
from loopir.lowering.call import Call
from loopir.lowering.context import Lowering
from stagewire import index as ix
from stagewire.expr import Dim, Expr
from stagewire.graph import NonFinite
from stagewire.loop import Index


def lower_broadcast_in_dim(lowering: Lowering, call: Call) -> None:
    """Operand dimension k lies along result dimension broadcast_dimensions[k]; size 1 is repeated."""
    buffer, type = call.tensor("x")
    places = call.axes("broadcast_dimensions", len(call.type.shape))
    sources = [None if size == 1 else d for size, d in zip(type.shape, places, strict=True)]
    lowering.view(call, buffer, lambda i, _: tuple([ix.ZERO if d is None else i[d] for d in sources]))


def lower_permute(lowering: Lowering, call: Call) -> None:
    """result dimension k is operand dimension dims[k]."""
    buffer, type = call.tensor("x")
    dims = call.axes("dims", len(type.shape))
    sources = [dims.index(d) for d in range(len(dims))]
    lowering.view(call, buffer, lambda i, _: tuple([i[d] for d in sources]))


def lower_reshape(lowering: Lowering, call: Call) -> None:
    """The same elements in row-major order."""
    buffer, type = call.tensor("x")
    shape, target = call.type.shape, type.shape
    lowering.view(call, buffer, lambda i, sizes: ix.reshape(i, shape, target, sizes))


def lower_slice(lowering: Lowering, call: Call) -> None:
    """result[i] = x[start + i*step]."""
    buffer, _ = call.tensor("x")
    start, step = call.dims("start"), call.dims("step")
    lowering.view(
        call, buffer, lambda i, _: tuple([ix.shift(ix.scale(k, s), o) for k, o, s in zip(i, start, step, strict=True)])
    )


def lower_flip(lowering: Lowering, call: Call) -> None:
    """result[i] = x[size - 1 - i] along dims."""
    buffer, type = call.tensor("x")
    dims = call.axes("dims", len(type.shape))
    ends = [size - 1 if d in dims else None for d, size in enumerate(type.shape)]
    lowering.view(
        call, buffer,
        lambda i, _: tuple([k if e is None else ix.shift(ix.scale(k, -1), e) for k, e in zip(i, ends, strict=True)]),
    )  # fmt: skip


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


def lower_as_strided(lowering: Lowering, call: Call) -> None:
    """result[i] = element offset + i . stride of x in row-major order."""
    buffer, type = call.tensor("x")
    stride, (offset,), shape = call.dims("stride"), call.dims("offset"), type.shape
    lowering.view(call, buffer, lambda i, sizes: ix.delinear(ix.linear(i, stride, offset), shape, sizes))


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

    if 0 in source_type.shape:
        lowering.pointwise(call, lambda ops, *i: ops.load(buffer, *i))
    else:
        lowering.pointwise(call, point)


def lower_clone(lowering: Lowering, call: Call) -> None:
    """The identity; the result's type says which layout is wanted."""
    buffer, _ = call.tensor("x")
    lowering.view(call, buffer, lambda i, _: i)


TABLE = {
    "broadcast_in_dim": (("x", "shape", "broadcast_dimensions"), lower_broadcast_in_dim),
    "permute": (("x", "dims"), lower_permute),
    "reshape": (("x", "shape"), lower_reshape),
    "slice": (("x", "start", "stop", "step"), lower_slice),
    "flip": (("x", "dims"), lower_flip),
    "cat": (("tensors", "dim"), lower_cat),
    "pad": (("x", "low", "high", "value"), lower_pad),
    "as_strided": (("x", "size", "stride", "offset"), lower_as_strided),
    "slice_scatter": (("x", "src", "start", "stop", "step"), lower_slice_scatter),
    "clone": (("x",), lower_clone),
}
