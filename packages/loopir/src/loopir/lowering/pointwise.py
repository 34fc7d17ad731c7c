"""Elementwise prims and casts: one loop op each."""

from __future__ import annotations

from loopir.builder import Recorder
from loopir.emitter import Typed
from loopir.lowering.call import Call
from loopir.lowering.context import Lowering
from stagewire.expr import Expr
from stagewire.graph import DTypeArg, NonFinite, Ref
from stagewire.loop import Index
from stagewire.loop_ops import OPS, arity
from stagewire.types import ITEM_SIZE, DType

APART = ("convert", "bitcast", "check_index", "wrap_index", "philox")
"""Loop ops that are no prims of their own name, or have other parameters than operands."""
PARAMETERS: dict[int, tuple[str, ...]] = {1: ("a",), 2: ("a", "b"), 3: ("a", "b", "c")}


def lower_elementwise(lowering: Lowering, call: Call) -> None:
    """result[i] = op(a[i], b[i], ...): tensors of one shape, numbers anywhere."""
    operands = (*call.node.args, *call.node.kwargs.values())
    if len(operands) != arity(call.name):
        raise call.refuse(f"{len(operands)} operands for an op of {arity(call.name)}")
    shape = call.type.shape
    for operand in operands:
        if isinstance(operand, Ref) and call.as_tensor(operand)[1].shape != shape:
            raise call.refuse(f"operand {operand.name} has shape {call.types[operand.name].shape}, the result {shape}")
    literal_dtype = _literal_dtype(call, operands)

    def point(ops: Recorder, *indices: Index) -> Typed:
        values = [_operand(call, ops, operand, literal_dtype, indices) for operand in operands]
        return ops.emitter.compute(call.name, *values)

    lowering.pointwise(call, point)


def _literal_dtype(call: Call, operands: tuple[object, ...]) -> DType:
    if call.name == "where":
        return call.type.dtype
    for operand in operands:
        if isinstance(operand, Ref):
            return call.types[operand.name].dtype
    return call.type.dtype


def _operand(call: Call, ops: Recorder, operand: object, dtype: DType, indices: tuple[Index, ...]) -> Typed:
    if isinstance(operand, Ref):
        return ops.load(operand.name, *indices)
    if isinstance(operand, bool | int | float | NonFinite | Expr):
        return ops.number(operand, dtype)
    raise call.refuse(f"{operand!r} is neither a tensor nor a number")


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


TABLE = {name: (PARAMETERS[arity(name)], lower_elementwise) for name in OPS if name not in APART}
TABLE |= {"convert_element_type": (("x", "dtype"), lower_convert), "bitcast": (("x", "dtype"), lower_bitcast)}
