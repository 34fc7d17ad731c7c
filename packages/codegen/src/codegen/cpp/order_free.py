"""Reductions with an order as reductions without one, whose points lanes and threads may share.

    k = argmax v               m = max v; k = min over the points of (position if v == m or v is nan, else beyond)
    mean, q, n = welford v     mean = (sum of v) / n; q = sum of (v - mean) * (v - mean)           (of float64 alone)

The second loop computes v again. If any v is nan then so is m, and no v equals it: the first nan is found.
"""

from __future__ import annotations

from msgspec.structs import replace

from stagewire import index as ix
from stagewire import loop
from stagewire.graph import Ref
from stagewire.literals import FLOATS
from stagewire.statements import makers, points_of, select, statements_of, used_values
from stagewire.types import DType

WHICH: dict[str, loop.ReduceKind] = {"argmax": "max", "argmin": "min"}
BEYOND: dict[str, int] = {"int32": 2**31 - 1, "int64": 2**62}
"""Positions are counted in 32 bits where there are few enough of them."""


def order_free(kernel: loop.Kernel) -> loop.Kernel:
    """The kernel with each argmax and argmin, and each variance of float64, as reductions in any order."""
    if not any(map(_is_ordered, statements_of(kernel))):
        return kernel
    return replace(kernel, sections=tuple([part for section in kernel.sections for part in _split(section)]))


def _is_ordered(statement: loop.Statement) -> bool:
    """Whether a reduction's running form is not one of each lane."""
    if not isinstance(statement, loop.Reduce):
        return False
    return statement.reduction in WHICH or (statement.reduction, statement.dtype) == ("welford", "float64")


def _split(section: loop.Section) -> list[loop.Section]:
    found = [s for s in section.statements if _is_ordered(s)]
    if not found:
        return [section]
    others = tuple(s for s in section.statements if s not in found)
    before = makers(others, {name for s in found for name in used_values(s)})
    first, between, second, results = (list[loop.Statement]() for _ in range(4))
    for reduce in found:
        own = tuple(makers(others, used_values(reduce)))
        parts = _variance if reduce.reduction == "welford" else _position  # type: ignore[union-attr]
        for statements, more in zip((first, between, second, results), parts(reduce, own, section.axes), strict=True):  # type: ignore[arg-type]
            statements += more
    stores = any(True for _ in select((section,), loop.Store))  # maybe into the memory of what is read: `Buffer.reuse`
    overwrites = stores and any(isinstance(s, loop.Load) for s in before)
    split = [(section.axes, (*(before if overwrites else others), *first)), ((), between), (section.axes, second),
             ((), results), (section.axes, others if overwrites else ())]  # fmt: skip
    return [loop.Section(axes, tuple(statements)) for axes, statements in split if statements]


Parts = tuple[list[loop.Statement], list[loop.Statement], list[loop.Statement], list[loop.Statement]]
"""What is added to the loop, what stands behind it, a second loop, and what stands behind that."""


def _position(reduce: loop.Reduce, own: tuple[loop.Statement, ...], axes: tuple[loop.Axis, ...]) -> Parts:
    """The first point whose value is the best one, or nan. own: what makes the value at each point."""
    (name,), value = reduce.results, reduce.operand
    if not own:  # all points are alike
        return [], [], [], [loop.Compute(name, "convert", (0,), reduce.dtype)]
    dtype, count = own[-1].dtype, points_of(axes)  # type: ignore[union-attr]
    counted: DType = "int32" if isinstance(count, int) and count < BEYOND["int32"] else "int64"
    hit = [loop.Compute(f"{name}.equal", "eq", (value, Ref(f"{name}.best")), "bool")]
    if dtype in FLOATS:
        hit += [
            loop.Compute(f"{name}.nan", "isnan", (value,), "bool"),
            loop.Compute(f"{name}.hit", "logical_or", (Ref(f"{name}.equal"), Ref(f"{name}.nan")), "bool"),
        ]
    at = (Ref(hit[-1].result), Ref(f"{name}.point"), BEYOND[counted])
    search = [
        *own,
        *hit,
        loop.IndexValue(f"{name}.point", ix.row_major(axes), counted),
        loop.Compute(f"{name}.first", "where", at, counted),
        loop.Reduce((f"{name}.at",), "min", Ref(f"{name}.first"), counted),
    ]
    best = loop.Reduce((f"{name}.best",), WHICH[reduce.reduction], value, dtype)
    return [best], [], search, [loop.Compute(name, "convert", (Ref(f"{name}.at"),), reduce.dtype)]


def _variance(reduce: loop.Reduce, own: tuple[loop.Statement, ...], axes: tuple[loop.Axis, ...]) -> Parts:
    """Mean, squared deviations and count, by two loops."""
    (mean, squares, count), dtype = reduce.results, reduce.dtype
    total, points, off, square = (f"{mean}.{part}" for part in ("total", "points", "off", "square"))
    moments = [
        loop.IndexValue(points, ix.constant(points_of(axes)), "int64"),
        loop.Compute(count, "convert", (Ref(points),), dtype),
        loop.Compute(mean, "div", (Ref(total), Ref(count)), dtype),
    ]
    deviations = [
        *own,
        loop.Compute(off, "sub", (reduce.operand, Ref(mean)), dtype),
        loop.Compute(square, "mul", (Ref(off), Ref(off)), dtype),
        loop.Reduce((squares,), "sum", Ref(square), dtype),
    ]
    return [loop.Reduce((total,), "sum", reduce.operand, dtype)], moments, deviations, []
