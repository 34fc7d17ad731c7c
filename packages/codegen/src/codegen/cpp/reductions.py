"""How each reduction accumulates: declarations, the update at a point, the pragma clause, the results.

float32 sums and products accumulate in float64, which makes the order of summation irrelevant at float32 precision;
along a row, a chunk of PARTIAL points is summed in float32 lanes first, along columns a block of PARTIAL_ROWS points,
and these sums in float64. Variance of float32 data is sum and sum of squares, both in float64 (a float32 square is
exact there). The extremum of floats is that of the numbers, beside a flag for nan: one instruction each, where an
extremum that passes nan on is a chain of three.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from codegen.cpp.tuning import TUNED
from codegen.cpp.types import c_type, literal
from codegen.errors import MalformedLoop
from stagewire import index as ix
from stagewire import loop
from stagewire.graph import Ref
from stagewire.literals import FLOATS, neutral
from stagewire.loop import Axis, Reduce
from stagewire.statements import makers, points_of, select, statements_of, used_values
from stagewire.types import DType


def partial_block(axes: Sequence[Axis]) -> tuple[int, int]:
    """(position, length): the axis of a column plan's section that runs in blocks, so that each lane sums at most
    `partial_rows` points (and at least a quarter of that) in a block. Length 0: too few points for blocks.

    >>> partial_block((Axis("a", 512),)), partial_block((Axis("a", 100), Axis("b", 9))), partial_block((Axis("a", 8),))
    ((0, 64), (0, 7), (0, 0))
    """
    inner = 1
    for position in reversed(range(len(axes))):
        size = axes[position].size
        length = TUNED.partial_rows // inner
        if not isinstance(size, int) or size > length:
            if length * inner * 4 >= TUNED.partial_rows:
                return position, length
            return position + 1, axes[position + 1].size  # type: ignore[return-value]
        inner *= max(size, 1)
    return (0, axes[0].size) if inner * 4 >= TUNED.partial_rows else (0, 0)  # type: ignore[return-value]


class Accumulator(NamedTuple):
    """One C++ variable of a reduction: its type, start value, and OpenMP reduction operator."""

    name: str
    type: str
    start: str
    operator: str


class Reducer(NamedTuple):
    """`update` statements use `{x}` (operand) and accumulator names with `{j}` (lane subscript);
    `results` are expressions in the same names and `{n}` (points reduced over), one for each result."""

    accumulators: tuple[Accumulator, ...]
    update: str
    results: tuple[str, ...]
    partial: str = ""
    """The type in which a chunk of a row is accumulated ("" if at once in the accumulator), with the same update."""


def reducer(statement: Reduce, name: str) -> Reducer:
    """The recipe of a reduction without an order (see `order_free`); `name` makes the accumulators' names."""
    dtype = statement.dtype
    kind = c_type(dtype)
    acc = f"a_{name}"
    match statement.reduction:
        case "sum" | "prod" as which:
            wide = "f64" if dtype in FLOATS else kind.local
            start, sign = ("0", "+") if which == "sum" else ("1", "*")
            if dtype == "bool":
                wide, sign, start = "i32", ("|" if which == "sum" else "&"), start
            result = f"(({kind.local}){acc}{{j}})"
            if kind.rounding:
                result = f"{kind.rounding}({result})"
            cast = f"({wide})" if wide != kind.local else ""
            return Reducer(
                (Accumulator(acc, wide, start, sign),),
                f"{acc}{{j}} = ({wide})({acc}{{j}} {sign} {cast}{{x}});",
                (result,),
                partial=kind.local if which == "sum" and cast and dtype in FLOATS else "",
            )
        case "max" | "min" as which if dtype != "bool":
            return _extremum(which, dtype, acc)
        case "any" | "all" | "max" | "min" as which:
            start, sign = ("0", "|") if which in ("any", "max") else ("1", "&")
            update = f"{acc}{{j}} {sign}= (i32)({{x}} != 0);"
            return Reducer((Accumulator(acc, "i32", start, sign),), update, (f"({acc}{{j}} != 0)",))
        case "xor_sum":
            return Reducer((Accumulator(acc, kind.local, "0", "^"),), f"{acc}{{j}} ^= {{x}};", (f"{acc}{{j}}",))
        case "welford":
            return _variance(acc)
    raise MalformedLoop(f"unknown reduction {statement.reduction!r}")


def _extremum(which: str, dtype: str, acc: str) -> Reducer:
    kind = c_type(dtype)
    start = literal(neutral(which, dtype), dtype)
    sign = ">" if which == "max" else "<"
    if dtype in FLOATS:
        update = f"{acc}{{j}} = {{x}} {sign} {acc}{{j}} ? {{x}} : {acc}{{j}}; {acc}_n{{j}} |= {{x}} != {{x}};"
        flag = "i64" if kind.local == "f64" else "i32"  # of the same width, so that the lanes of both agree
        found = f'({acc}_n{{j}} ? ({kind.local})__builtin_nan("") : {acc}{{j}})'
        return Reducer(
            (Accumulator(acc, kind.local, start, which), Accumulator(f"{acc}_n", flag, "0", "|")), update, (found,)
        )
    update = f"{acc}{{j}} = {{x}} {sign} {acc}{{j}} ? {{x}} : {acc}{{j}};"
    return Reducer((Accumulator(acc, kind.local, start, which),), update, (f"{acc}{{j}}",))


def _variance(acc: str) -> Reducer:
    mean = f"((f32)({acc}_s{{j}} / (f64){{n}}))"
    spread = f"({acc}_q{{j}} - {acc}_s{{j}} * ({acc}_s{{j}} / (f64){{n}}))"
    squares = f"((f32)({spread} < 0.0 ? 0.0 : {spread}))"
    return Reducer(
        (Accumulator(f"{acc}_s", "f64", "0", "+"), Accumulator(f"{acc}_q", "f64", "0", "+")),
        f"{acc}_s{{j}} += (f64){{x}}; {acc}_q{{j}} += (f64){{x}} * (f64){{x}};",
        (mean, squares, "((f32){n})"),
    )


WHICH: dict[str, loop.ReduceKind] = {"argmax": "max", "argmin": "min"}
BEYOND: dict[str, int] = {"int32": 2**31 - 1, "int64": 2**62}
"""Positions are counted in 32 bits where there are few enough of them."""


def order_free(kernel: loop.Kernel) -> loop.Kernel:
    """The kernel with each argmax and argmin, and each variance of float64, as reductions in any order, whose points
    lanes and threads may share.

        k = argmax v               m = max v; k = min over the points of (position if v == m or v is nan, else beyond)
        mean, q, n = welford v     mean = (sum of v) / n; q = sum of (v - mean) * (v - mean)

    The second loop computes v again. If any v is nan then so is m, and no v equals it: the first nan is found.
    """
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
        parts = _moments if reduce.reduction == "welford" else _position  # type: ignore[union-attr]
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


def _moments(reduce: loop.Reduce, own: tuple[loop.Statement, ...], axes: tuple[loop.Axis, ...]) -> Parts:
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
