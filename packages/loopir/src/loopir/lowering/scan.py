"""Scans: parallel axes are the other dimensions, one section runs along the scanned one.

On a CPU they stay calls of ATen.
"""

from __future__ import annotations

from collections.abc import Callable

from loopir.builder import Recorder
from loopir.emitter import Typed
from loopir.lowering.call import Call
from loopir.lowering.context import Lowering
from stagewire.graph import Arg, DTypeArg
from stagewire.literals import wider
from stagewire.loop import Index, ScanKind
from stagewire.types import DType, TensorType

KINDS: dict[str, ScanKind] = {
    "cumsum": "sum", "cumprod": "prod", "logcumsumexp": "logaddexp", "cummax": "max", "cummin": "min"
}  # fmt: skip


def lower_scan(lowering: Lowering, call: Call) -> None:
    """cumsum, cumprod, logcumsumexp along one dimension, in the result's dtype; half precision adds up in float32."""
    type = call.tensor("x")[1]
    slow = call.name == "logcumsumexp" and type.dtype == "float64"  # 700 KiB of machine code: it takes seconds to make
    if slow or not _in_loops(type):
        wide: dict[str, Arg] = {"dtype": DTypeArg(call.type.dtype)} if call.name in ("cumsum", "cumprod") else {}
        lowering.aten(call, f"aten.{call.name}.default", **wide)
        return

    def values(ops: Recorder, operand: Typed, _: Index) -> tuple[Typed, ...]:
        wide = ops.convert(operand, wider(type.dtype))
        return (ops.convert(ops.scan(KINDS[call.name], wide), type.dtype),)

    _loops(lowering, call, values)


def lower_extreme(lowering: Lowering, call: Call) -> None:
    """cummax, cummin: the running extreme, nan once one is nan, and the position of its last occurrence.

    A position is that of the last point before or at this one that was an extreme (or nan) when it was met.
    """
    type = call.tensor("x")[1]
    dim = call.axis("dim", len(type.shape))
    if not _in_loops(type) or type.dtype == "bool":
        lowering.aten(call, f"aten.{call.name}.default")
        return

    def values(ops: Recorder, operand: Typed, place: Index) -> tuple[Typed, ...]:
        best = ops.scan(KINDS[call.name], operand)
        is_best = ops.eq(operand, best)
        if "float" in type.dtype:
            is_best = ops.logical_or(is_best, ops.isnan(operand))
        size = type.shape[dim]
        narrow: DType = "int32" if isinstance(size, int) and size < 2**31 else "int64"
        at = ops.where(is_best, ops.convert(ops.index(place), narrow), Typed(-1, narrow))
        return best, ops.convert(ops.scan("max", at), "int64")

    _loops(lowering, call, values)


def _in_loops(type: TensorType) -> bool:
    """Whether kernels of our own compute scans of a tensor."""
    return not type.device.startswith("cpu") and bool(type.shape)


def _loops(lowering: Lowering, call: Call, values: Callable[[Recorder, Typed, Index], tuple[Typed, ...]]) -> None:
    """A nest that stores what `values` makes of the operand at each position."""
    buffer, type = call.tensor("x")
    dim = call.axis("dim", len(type.shape))
    results = call.node.results

    def body(ops: Recorder, *outer: Index) -> None:
        with ops.over(type.shape[dim]) as (position,):
            place = (*outer[:dim], position, *outer[dim:])
            found = values(ops, ops.load(buffer, *place), position)
            for result, value in zip(results, found, strict=True):
                ops.store(result.name, place, value)

    lowering.declare_results(call.node)
    lowering.nest(call, (*type.shape[:dim], *type.shape[dim + 1 :]), body)


TABLE = {
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), (("x", "dim"), lower_scan)),
    **dict.fromkeys(("cummax", "cummin"), (("x", "dim"), lower_extreme)),
}
