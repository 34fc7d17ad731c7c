"""Reductions: outer axes are the kept dimensions, one section over the reduced ones. Scans: outer axes are the other
dimensions, one section runs along the scanned one; on a CPU they stay calls of ATen."""

from __future__ import annotations

from collections.abc import Callable

from loopir.builder import Recorder
from loopir.emitter import Typed
from loopir.lowering.context import Call, Lowering
from stagewire.expr import Dim, Expr
from stagewire.graph import Arg, DTypeArg
from stagewire.literals import wider
from stagewire.loop import Index, ScanKind
from stagewire.types import DType, TensorType, numel

KINDS = {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min", "any": "any", "all": "all"}


def reduced_dims(call: Call, type: TensorType) -> tuple[int, ...]:
    """The dimensions that vanish; none named but a result of rank 0 means all."""
    rank = len(type.shape)
    dims = call.axes("dims", rank)
    return tuple(range(rank)) if not dims and rank and not call.type.shape else dims


def place(outer: tuple[Index, ...], inner: tuple[Index, ...], dims: tuple[int, ...]) -> tuple[Index, ...]:
    """Coordinates of the operand from those of the kept and of the reduced dimensions."""
    kept, reduced = iter(outer), iter(inner)
    return tuple(next(reduced) if d in dims else next(kept) for d in range(len(outer) + len(dims)))


class Window:
    """The loop over the reduced dimensions; sizes of 1 need no loop."""

    def __init__(self, ops: Recorder, type: TensorType, dims: tuple[int, ...]) -> None:
        self.ops = ops
        self.dims = tuple(sorted(dims))
        self.sizes = tuple(type.shape[d] for d in self.dims)
        self.loops = tuple(size for size in self.sizes if size != 1)

    def point(self, outer: tuple[Index, ...], loops: tuple[Index, ...]) -> tuple[Index, ...]:
        """Coordinates of the operand."""
        rest = iter(loops)
        inner = tuple(next(rest) if size != 1 else Index() for size in self.sizes)
        return place(outer, inner, self.dims)


def lower_fold(lowering: Lowering, call: Call) -> None:
    """sum, prod, amax, amin, any, all. Half precision accumulates in float32 and rounds once."""
    buffer, type = call.tensor("x")
    dims = reduced_dims(call, type)
    kind = KINDS[call.name]
    result: DType = call.type.dtype
    dtype = wider(result) if kind in ("sum", "prod") else result

    def body(ops: Recorder, *outer: Index) -> None:
        window = Window(ops, type, dims)
        if not window.loops:
            value = ops.convert(ops.load(buffer, *window.point(outer, ())), dtype)
        else:
            with ops.over(*window.loops) as loops:
                operand = ops.convert(ops.load(buffer, *window.point(outer, loops)), dtype)
                value = ops.reduce(kind, operand, dtype)  # type: ignore[arg-type]
        ops.store(call.result.name, outer, ops.convert(value, result))

    lowering.declare_results(call.node)
    lowering.nest(call, call.type.shape, body)


def lower_arg(lowering: Lowering, call: Call) -> None:
    """argmax, argmin: first of equals, nan wins; over all elements in row-major order if dim is None."""
    buffer, type = call.tensor("x")
    rank = len(type.shape)
    dims = tuple(range(rank)) if call.arguments.get("dim") is None else (call.axis("dim", rank),)
    dims = dims if rank else ()

    def body(ops: Recorder, *outer: Index) -> None:
        window = Window(ops, type, dims)
        if window.loops:
            with ops.over(*window.loops) as loops:
                best = ops.reduce(call.name, ops.load(buffer, *window.point(outer, loops)), "int64")  # type: ignore[arg-type]
        else:
            best = Typed(0, "int64")
        ops.store(call.result.name, outer, best)

    lowering.declare_results(call.node)
    # a kept dimension of size 1 (keepdim of the whole) needs no axis of its own
    lowering.nest(call, call.type.shape if len(call.type.shape) == rank - len(dims) else (), body)


def lower_var_mean(lowering: Lowering, call: Call) -> None:
    """Variance and mean; var = squared deviations / (count - correction), nan or inf at 0.

    float64 goes twice over the operand: Welford's update is a chain of dependent divisions, and nothing wider than
    float64 could make up for one pass. Other dtypes leave the way to the code generator ("welford").
    """
    buffer, type = call.tensor("x")
    dims = reduced_dims(call, type)
    correction = call.operand("correction") if call.arguments.get("correction") is not None else 1
    variance, mean = call.node.results
    result: DType = call.type.dtype
    dtype = wider(result)

    def body(ops: Recorder, *outer: Index) -> None:
        window = Window(ops, type, dims)
        count = numel(window.sizes)
        if window.loops and dtype == "float64":
            with ops.over(*window.loops) as loops:
                total = ops.reduce("sum", ops.load(buffer, *window.point(outer, loops)), dtype)
            average = ops.div(total, _number(ops, count, dtype))
            with ops.over(*window.loops) as loops:
                deviation = ops.sub(ops.load(buffer, *window.point(outer, loops)), average)
                squares = ops.reduce("sum", ops.mul(deviation, deviation), dtype)
        elif window.loops:
            with ops.over(*window.loops) as loops:
                operand = ops.convert(ops.load(buffer, *window.point(outer, loops)), dtype)
                average, squares, _ = ops.reduce("welford", operand, dtype)
        else:
            average = ops.convert(ops.load(buffer, *window.point(outer, ())), dtype)
            squares = ops.sub(average, average)
        if isinstance(count, int) and not isinstance(correction, Expr):
            divisor = Typed(float(max(0, count - correction)), dtype)  # type: ignore[operator]
        else:
            degrees = ops.sub(_number(ops, count, dtype), ops.number(correction, dtype))  # type: ignore[arg-type]
            divisor = ops.maximum(degrees, 0.0)
        ops.store(variance.name, outer, ops.convert(ops.div(squares, divisor), result))
        ops.store(mean.name, outer, ops.convert(average, result))

    lowering.declare_results(call.node)
    lowering.nest(call, call.type.shape, body)


def _number(ops: Recorder, count: Dim, dtype: DType) -> Typed:
    return ops.number(count if isinstance(count, Expr) else float(count), dtype)


SCANS: dict[str, ScanKind] = {
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
        return (ops.convert(ops.scan(SCANS[call.name], wide), type.dtype),)

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
        best = ops.scan(SCANS[call.name], operand)
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


TABLE = dict.fromkeys(KINDS, (("x", "dims"), lower_fold)) | {
    "argmax": (("x", "dim"), lower_arg),
    "argmin": (("x", "dim"), lower_arg),
    "var_mean": (("x", "dims", "correction"), lower_var_mean),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), (("x", "dim"), lower_scan)),
    **dict.fromkeys(("cummax", "cummin"), (("x", "dim"), lower_extreme)),
}
