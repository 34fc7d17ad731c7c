"""Prims that make tensors from nothing, or from a seed."""

from __future__ import annotations

from loopir.builder import Recorder
from loopir.emitter import Typed
from loopir.fold import round_literal
from loopir.lowering.call import Call
from loopir.lowering.context import Lowering
from stagewire import index as ix
from stagewire.expr import Expr
from stagewire.literals import INTEGERS
from stagewire.loop import Index
from stagewire.types import contiguous_stride


def lower_full(lowering: Lowering, call: Call) -> None:
    """One number everywhere, rounded to the dtype."""
    value, dtype = call.operand("value"), call.type.dtype
    rounded = value if isinstance(value, Expr) else round_literal(value, dtype)
    lowering.pointwise(call, lambda ops, *i: ops.number(rounded, dtype))  # type: ignore[arg-type]


def lower_iota(lowering: Lowering, call: Call) -> None:
    """result[i] = start + i*step."""
    start, step = call.operand("start"), call.operand("step")
    dtype = call.type.dtype

    def point(ops: Recorder, i: Index) -> Typed:
        if isinstance(start, int | Expr) and isinstance(step, int | Expr):
            position = ix.shift(ix.scale(i, step), start)
            if dtype in INTEGERS:
                return ops.index(position, dtype)
            return ops.convert(ops.index(position), dtype)
        count = ops.convert(ops.index(i), dtype)
        return ops.add(ops.mul(count, ops.number(step, dtype)), ops.number(start, dtype))  # type: ignore[arg-type]

    lowering.pointwise(call, point)


def lower_philox_uniform(lowering: Lowering, call: Call) -> None:
    """result[i] = the number of the element i in row-major order."""
    seed, offset = call.tensor("seed")[0], call.tensor("offset")[0]
    threads, width = (int(call.operand(name)) for name in ("threads", "width"))  # type: ignore[arg-type]
    steps = contiguous_stride(call.type.shape)

    def point(ops: Recorder, *indices: Index) -> Typed:
        element = ops.index(ix.linear(indices, steps))
        shared = Typed(threads, "int64"), Typed(width, "int64")
        return ops.emitter.compute("philox", ops.load(seed), ops.load(offset), element, *shared, dtype="float32")

    lowering.pointwise(call, point)


TABLE = {
    "philox_uniform": (("seed", "offset", "shape", "threads", "width", "device"), lower_philox_uniform),
    "full": (("shape", "value", "dtype"), lower_full),
    "iota": (("length", "start", "step", "dtype"), lower_iota),
}
