"""Prims that compute each element of its own: of operands at the same place, of its place, or of nothing."""

from __future__ import annotations

from loopir.builder import Recorder
from loopir.emitter import Typed, round_literal
from loopir.lowering.context import Call, Lowering
from stagewire import index as ix
from stagewire.expr import Expr
from stagewire.graph import DTypeArg, NonFinite, Ref
from stagewire.literals import INTEGERS
from stagewire.loop import Index
from stagewire.loop_ops import OPS, arity
from stagewire.types import ITEM_SIZE, contiguous_stride

APART = ("convert", "bitcast", "check_index", "wrap_index", "philox")
"""Loop ops that are no prims of their own name, or have other parameters than operands."""
PARAMETERS: dict[int, tuple[str, ...]] = {1: ("a",), 2: ("a", "b"), 3: ("a", "b", "c")}


def lower_elementwise(lowering: Lowering, call: Call) -> None:
    """result[i] = op(a[i], b[i], ...): tensors of one shape, numbers anywhere."""
    operands = call.node.args
    if len(operands) != arity(call.name):
        raise call.refuse(f"{len(operands)} operands for an op of {arity(call.name)}")
    shape = call.type.shape
    for operand in operands:
        if isinstance(operand, Ref) and call.as_tensor(operand)[1].shape != shape:
            raise call.refuse(f"operand {operand.name} has shape {call.types[operand.name].shape}, the result {shape}")
        if not isinstance(operand, Ref | bool | int | float | NonFinite | Expr):
            raise call.refuse(f"{operand!r} is neither a tensor nor a number")

    def point(ops: Recorder, *indices: Index) -> Typed:
        values = [ops.load(one.name, *indices) if isinstance(one, Ref) else one for one in operands]
        return ops.emitter.compute(call.name, *values, dtype=call.type.dtype)  # type: ignore[arg-type]

    lowering.pointwise(call, point)


def lower_convert(lowering: Lowering, call: Call) -> None:
    """result[i] = x[i] in another dtype."""
    buffer, _ = call.tensor("x")
    dtype = call.type.dtype
    lowering.pointwise(call, lambda ops, *i: ops.convert(ops.load(buffer, *i), dtype))


def lower_bitcast(lowering: Lowering, call: Call) -> None:
    """result[i] = the bits of x[i] as another dtype of the same size."""
    buffer, type = call.tensor("x")
    dtype = call.arguments.get("dtype")
    target = dtype.name if isinstance(dtype, DTypeArg) else call.type.dtype
    if ITEM_SIZE[target] != ITEM_SIZE[type.dtype]:
        raise call.refuse(f"{type.dtype} and {target} differ in size")
    lowering.pointwise(call, lambda ops, *i: ops.bitcast(ops.load(buffer, *i), call.type.dtype))


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


TABLE = {name: (PARAMETERS[arity(name)], lower_elementwise) for name in OPS if name not in APART}
TABLE |= {
    "convert_element_type": (("x", "dtype"), lower_convert),
    "bitcast": (("x", "dtype"), lower_bitcast),
    "philox_uniform": (("seed", "offset", "shape", "threads", "width", "device"), lower_philox_uniform),
    "full": (("shape", "value", "dtype"), lower_full),
    "iota": (("length", "start", "step", "dtype"), lower_iota),
}
