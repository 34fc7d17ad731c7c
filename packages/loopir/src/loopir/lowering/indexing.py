"""Indirect access: gathers read at loaded positions, scatters copy and then write at loaded positions."""

from __future__ import annotations

from loopir.builder import Recorder, Scalar
from loopir.emitter import Typed
from loopir.lowering.context import Call, Lowering
from stagewire.expr import Dim
from stagewire.graph import Arg, Ref
from stagewire.loop import Index


def position(ops: Recorder, buffer: str, at: tuple[Index, ...], size: Dim, wrap: bool = False) -> Index:
    """The index stored in `buffer`, which raises out of range; `wrap`: negative ones count from the end."""
    loaded = ops.convert(ops.load(buffer, *at), "int64")
    check = ops.wrap_index if wrap else ops.check_index
    return ops.emitter.place(check(loaded, ops.index(Index(size))))


def lower_gather(lowering: Lowering, call: Call) -> None:
    """result[i] = x[i with i[dim] replaced by index[i]]."""
    buffer, type = call.tensor("x")
    where, _ = call.tensor("index")
    dim = call.axis("dim", len(type.shape))

    def point(ops: Recorder, *i: Index) -> Typed:
        if not type.shape:
            return ops.load(buffer)
        found = position(ops, where, i, type.shape[dim])
        return ops.load(buffer, *(found if d == dim else k for d, k in enumerate(i)))

    lowering.pointwise(call, point)


class AdvancedIndex:
    """The geometry of x[indices]: where the dimensions of the index tensors come to lie in the result."""

    def __init__(self, call: Call, shape: tuple[Dim, ...], indices: tuple[Arg, ...]) -> None:
        self.shape = shape
        self.wrap = call.arguments.get("wrap") is not False
        self.indices = (*indices, *(None for _ in range(len(shape) - len(indices))))
        named = [d for d, item in enumerate(self.indices) if item is not None]
        self.buffers = {d: call.as_tensor(self.indices[d])[0] for d in named}
        self.rank = max((len(call.types[b].shape) for b in self.buffers.values()), default=0)
        adjacent = not named or named == list(range(named[0], named[-1] + 1))
        self.first = named[0] if named and adjacent else 0

    def coordinates(self, ops: Recorder, i: tuple[Index, ...]) -> tuple[Index, ...]:
        """The element of x that the result at `i` stands for."""
        at = i[self.first : self.first + self.rank]
        rest = iter((*i[: self.first], *i[self.first + self.rank :]))
        return tuple(
            position(ops, self.buffers[d], at, size, self.wrap) if d in self.buffers else next(rest)
            for d, size in enumerate(self.shape)
        )


def lower_index(lowering: Lowering, call: Call) -> None:
    """Advanced indexing, as torch places the dimensions."""
    buffer, type = call.tensor("x")
    geometry = AdvancedIndex(call, type.shape, call.items("indices"))
    lowering.pointwise(call, lambda ops, *i: ops.load(buffer, *geometry.coordinates(ops, i)))


def _copy_then(lowering: Lowering, call: Call, x: str) -> None:
    lowering.pointwise(call, lambda ops, *i: ops.load(x, *i))


def _source(call: Call, ops: Recorder, operand: object, i: tuple[Index, ...], dtype: str) -> Scalar:
    if isinstance(operand, Ref):
        return ops.load(operand.name, *i)
    return ops.number(operand, dtype)  # type: ignore[arg-type]


def lower_scatter(lowering: Lowering, call: Call) -> None:
    """A copy of x, then result[i with i[dim] replaced by index[i]] = src[i] (or += src[i])."""
    buffer, type = call.tensor("x")
    where, where_type = call.tensor("index")
    source = call.operand("src")
    dim = call.axis("dim", len(type.shape))
    mode = "atomic_add" if call.name == "scatter_add" else "set"
    _copy_then(lowering, call, buffer)

    def body(ops: Recorder, *i: Index) -> None:
        place: tuple[Index, ...] = ()
        if type.shape:
            found = position(ops, where, i, type.shape[dim])
            place = tuple(found if d == dim else k for d, k in enumerate(i))
        ops.store(call.result.name, place, _source(call, ops, source, i, type.dtype), mode)

    lowering.nest(call, where_type.shape, body)


def lower_index_put(lowering: Lowering, call: Call) -> None:
    """A copy of x, then result[indices] = values (or += values)."""
    buffer, type = call.tensor("x")
    values = call.operand("values")
    geometry = AdvancedIndex(call, type.shape, call.items("indices"))
    mode = "atomic_add" if call.arguments.get("accumulate") is True else "set"
    _copy_then(lowering, call, buffer)

    def body(ops: Recorder, *i: Index) -> None:
        value = _source(call, ops, values, i, type.dtype)
        ops.store(call.result.name, geometry.coordinates(ops, i), value, mode)

    lowering.nest(call, _indexed_shape(call, geometry), body)


def _indexed_shape(call: Call, geometry: AdvancedIndex) -> tuple[Dim, ...]:
    """The shape of x[indices]."""
    common: tuple[Dim, ...] = next((call.types[b].shape for b in geometry.buffers.values()), ())
    rest = tuple(size for d, size in enumerate(geometry.shape) if d not in geometry.buffers)
    return (*rest[: geometry.first], *common, *rest[geometry.first :])


TABLE = {
    "gather": (("x", "dim", "index"), lower_gather),
    "index": (("x", "indices", "wrap"), lower_index),
    "scatter": (("x", "dim", "index", "src"), lower_scatter),
    "scatter_add": (("x", "dim", "index", "src"), lower_scatter),
    "index_put": (("x", "indices", "values", "accumulate", "wrap"), lower_index_put),
}
